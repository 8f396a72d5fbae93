//! An address by DHCP, from a server made of smoltcp's messages.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol,
    Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

use super::*;

/// The answer to a frame with a request, if it is one.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let e = EthernetFrame::new_checked(frame).ok()?;
    if e.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let p = Ipv4Packet::new_checked(e.payload()).ok()?;
    let u = UdpPacket::new_checked(p.payload()).ok()?;
    let packet = DhcpPacket::new_checked(u.payload()).ok()?;
    let asked = DhcpRepr::parse(&packet).ok()?;
    let kind = match asked.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return None,
    };
    let server = "10.0.0.2".parse().unwrap();
    let mut names = asked.dns_servers.clone().unwrap_or_default();
    names.push("10.0.0.53".parse().unwrap()).unwrap();
    let dhcp = DhcpRepr {
        message_type: kind,
        your_ip: "10.0.0.100".parse().unwrap(),
        server_ip: server,
        router: Some(server),
        subnet_mask: Some("255.255.255.0".parse().unwrap()),
        server_identifier: Some(server),
        lease_duration: Some(600),
        dns_servers: Some(names),
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        max_size: None,
        ..asked
    };
    let udp = UdpRepr { src_port: 67, dst_port: 68 };
    let ip = Ipv4Repr {
        src_addr: server,
        dst_addr: "255.255.255.255".parse().unwrap(),
        next_header: IpProtocol::Udp,
        payload_len: 8 + dhcp.buffer_len(),
        hop_limit: 64,
    };
    let mut out = std::vec![0; 14 + 20 + ip.payload_len];
    let mut e = EthernetFrame::new_unchecked(&mut out);
    e.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 2]));
    e.set_dst_addr(EthernetAddress::BROADCAST);
    e.set_ethertype(EthernetProtocol::Ipv4);
    let mut p = Ipv4Packet::new_unchecked(e.payload_mut());
    let sums = ChecksumCapabilities::default();
    ip.emit(&mut p, &sums);
    let mut u = UdpPacket::new_unchecked(p.payload_mut());
    udp.emit(
        &mut u,
        &ip.src_addr.into(),
        &ip.dst_addr.into(),
        dhcp.buffer_len(),
        |b| dhcp.emit(&mut DhcpPacket::new_unchecked(b)).unwrap(),
        &sums,
    );
    Some(out)
}

#[test]
fn an_address_is_asked_for_used_and_given_up() {
    let mut sim = Sim::new(1, Wire::GOOD);
    let port = TestPort {
        mac: [2, 0, 0, 0, 0, 1],
        wire: Wire::GOOD,
        clock: sim.clock.clone(),
        input: sim.lanes[0].clone(),
        output: sim.lanes[1].clone(),
    };
    let port = PortConfig { port: Arc::new(port), dhcp: true, addresses: Vec::new(), gateways: Vec::new() };
    sim.stacks[0] = Stack::new(config(1), std::vec![port], Box::new(|_| {}));
    let there = bytes("10.0.0.2:80".parse().unwrap());
    let a = sim.tcp(0);
    assert_eq!(sim.calls(0).connect(a, &there), Err(Errno::ENETUNREACH));
    let has = |sim: &Sim| sim.calls(0).addresses().contains(&(1, "10.0.0.100".parse().unwrap(), 24));
    let serve = |sim: &Sim| {
        let asked: Vec<_> = sim.lanes[1].lock().unwrap().frames.values().cloned().collect();
        for answer in asked.iter().filter_map(|f| answer(f)) {
            sim.lanes[0].lock().unwrap().push(sim.now(), answer);
        }
        sim.step(SECOND);
    };
    for _ in 0..100 {
        serve(&sim);
    }
    assert!(has(&sim));
    assert_eq!(sim.calls(0).name_servers(), ["10.0.0.53".parse::<IpAddr>().unwrap()]);
    let l = sim.listen(1, "0.0.0.0:80", 5);
    sim.pair(0, 1, l, "10.0.0.2:80");
    // Far away is by way of the router.
    assert_eq!(sim.calls(0).connect(a, &bytes("192.0.2.1:80".parse().unwrap())), Err(Errno::EINPROGRESS));
    assert_eq!(name(&mut sim.calls(0), a, false).unwrap().ip(), "10.0.0.100".parse::<IpAddr>().unwrap());
    // It is asked for again in time; when nobody answers any more, it is given up.
    for _ in 0..3000 {
        serve(&sim);
    }
    assert!(has(&sim));
    sim.run(1300 * SECOND);
    assert!(!has(&sim));
    assert!(sim.calls(0).name_servers().is_empty());
}
