//! Which cores there are, which nodes they and memory are of, and where PCI and IOMMUs are found, by ACPI's tables. Read
//! by way of the `acpi` crate, while the first page tables still have all of the first 4 GiB: firmware keeps them in
//! memory that it calls reserved.
#![allow(unsafe_code, reason = "gives the tables' memory to the crate that reads them")]

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::mcfg::Mcfg;
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};

use arrayvec::ArrayVec;
use atoll_formats::affinity::{Affinity, affinities};
use atoll_partition::{CORES_MAX, Extent, Nodes, RANGES_MAX};

use crate::entry::{DIRECT, MAPPED};
use crate::memory::FRAME;
use crate::pvh::Boot;
use crate::say;

/// What the tables say of the processors.
pub struct Machine {
    /// The cores' APIC ids.
    pub apics: ArrayVec<u32, CORES_MAX>,
    /// Physical address of the local APIC's registers.
    pub apic_address: u64,
    /// I/O APICs: the physical address of their registers, and the number of their first line.
    pub io_apics: ArrayVec<(u64, u32), 8>,
    /// Cores that there was no room for.
    pub left_out: usize,
    /// PCI's configuration spaces, of segment 0.
    pub configurations: ArrayVec<Configuration, 8>,
    /// IOMMUs (Intel's): the physical address of their registers, and the PCI segment that they are for.
    pub iommus: ArrayVec<(u64, u16), 16>,
    /// APIC ids of cores with their nodes.
    pub core_nodes: ArrayVec<(u32, u32), CORES_MAX>,
    /// The memory's nodes.
    pub nodes: Nodes,
}

/// A configuration space of PCI.
pub struct Configuration {
    /// Physical address of bus 0's, be that in it or not.
    pub address: u64,
    /// Its buses.
    pub first_bus: u8,
    /// The last one.
    pub last_bus: u8,
}

/// The table of IOMMUs (Intel's VT-d specification, section 8.1); entries follow.
#[repr(C, packed)]
struct Dmar {
    header: SdtHeader,
    _width: u8,
    _flags: u8,
    _reserved: [u8; 10],
}

// SAFETY: it begins like that.
unsafe impl AcpiTable for Dmar {
    const SIGNATURE: Signature = Signature::DMAR;

    fn header(&self) -> &SdtHeader {
        &self.header
    }
}

/// The table of affinities, which the crate does not read.
#[repr(transparent)]
struct Srat(SdtHeader);

// SAFETY: every table begins with a header, and this has nothing else.
unsafe impl AcpiTable for Srat {
    const SIGNATURE: Signature = Signature::SRAT;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

#[derive(Clone)]
struct Mapper;

impl AcpiHandler for Mapper {
    unsafe fn map_physical_region<T>(&self, at: usize, size: usize) -> PhysicalMapping<Self, T> {
        // What the tables point to that is out of reach reads as nothing.
        let reached = at.checked_add(size).is_some_and(|end| end as u64 <= MAPPED);
        let here = if reached { DIRECT + at as u64 } else { nothing() };
        let start = NonNull::new(here as *mut T).unwrap_or(NonNull::dangling());
        // SAFETY: mapped as long as it is looked at.
        unsafe { PhysicalMapping::new(at, start, size, size, self.clone()) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

/// A page of zeroes.
fn nothing() -> u64 {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    static PAGE: Page = Page([0; 4096]);
    PAGE.0.as_ptr() as u64
}

impl Machine {
    /// Adds a core.
    pub fn add(&mut self, apic: u32) {
        if self.apics.try_push(apic).is_err() {
            self.left_out += 1;
        }
    }
}

impl Machine {
    /// Adds an I/O APIC. Lines of one that there is no room for reach nobody.
    pub fn add_io_apic(&mut self, address: u64, first_line: u32) {
        let _ = self.io_apics.try_push((address, first_line));
    }

    /// Adds the IOMMUs of a table's entries: type and length, each of two bytes, then what the type has. None may
    /// be forgotten: what is behind it would reach all memory.
    fn add_iommus(&mut self, mut entries: &[u8]) -> Result<(), &'static str> {
        const WRONG: &str = "ACPI's table of IOMMUs (DMAR) is damaged: iommu=off goes on without";
        while let [t0, t1, l0, l1, ..] = *entries {
            let len = usize::from(u16::from_le_bytes([l0, l1]));
            let entry = entries.get(..len).filter(|_| len >= 4).ok_or(WRONG)?;
            entries = &entries[len..];
            // Of all types only the first is an IOMMU.
            if [t0, t1] != [0, 0] {
                continue;
            }
            let [_, _, _, _, _, _, s0, s1, address @ ..] = entry else { return Err(WRONG) };
            let address = address.first_chunk().map(|a| u64::from_le_bytes(*a)).ok_or(WRONG)?;
            if address % FRAME != 0 || address >= 1 << 46 {
                return Err(WRONG);
            }
            let iommu = (address, u16::from_le_bytes([*s0, *s1]));
            self.iommus.try_push(iommu).map_err(|_| "this machine has too many IOMMUs")?;
        }
        Ok(())
    }
}

/// Asks the tables: ACPI's, or, where there are none, the older ones. Before the nucleus has page tables of
/// its own.
pub fn read(boot: &Boot) -> Result<Machine, &'static str> {
    let mut machine = Machine {
        apics: ArrayVec::new(),
        apic_address: 0,
        io_apics: ArrayVec::new(),
        left_out: 0,
        configurations: ArrayVec::new(),
        iommus: ArrayVec::new(),
        core_nodes: ArrayVec::new(),
        nodes: Nodes::none(),
    };
    if boot.rsdp == 0 {
        let found = crate::mp::read(&mut machine);
        return if found { Ok(machine) } else { Err("there are neither ACPI nor MP tables") };
    }
    // SAFETY: the loader says that it is there; every table's checksum is looked at.
    let tables = unsafe { AcpiTables::from_rsdp(Mapper, boot.rsdp as usize) };
    let tables = tables.map_err(|_| "ACPI's root pointer is damaged")?;
    let madt = tables.find_table::<Madt>().map_err(|_| "ACPI has no table of the processors (MADT)")?;
    let madt = madt.get();
    machine.apic_address = u64::from(madt.local_apic_address);
    for entry in madt.entries() {
        let (id, flags) = match entry {
            MadtEntry::LocalApic(e) => (u32::from(e.apic_id), e.flags),
            MadtEntry::LocalX2Apic(e) => (e.x2apic_id, e.flags),
            MadtEntry::IoApic(e) => {
                machine.add_io_apic(u64::from(e.io_apic_address), e.global_system_interrupt_base);
                continue;
            }
            _ => continue,
        };
        // Bit 0: enabled.
        if flags & 1 != 0 {
            machine.add(id);
        }
    }
    // Neither need be there.
    if let Ok(mcfg) = tables.find_table::<Mcfg>()
        && mcfg.region_length() >= size_of::<Mcfg>()
    {
        for e in mcfg.entries() {
            let (address, segment) = (e.base_address, e.pci_segment_group);
            let (first_bus, last_bus) = (e.bus_number_start, e.bus_number_end);
            let fits = address % FRAME == 0 && address < 1 << 46;
            let configuration = Configuration { address, first_bus, last_bus };
            if segment != 0 || !fits || machine.configurations.try_push(configuration).is_err() {
                say!("PCI segment {segment}, buses {first_bus} to {last_bus}: left out");
            }
        }
    }
    if boot.option("iommu") != Some("off")
        && let Ok(dmar) = tables.find_table::<Dmar>()
    {
        // SAFETY: the crate has summed up as many bytes.
        let bytes = unsafe {
            core::slice::from_raw_parts(dmar.virtual_start().cast::<u8>().as_ptr(), dmar.region_length())
        };
        machine.add_iommus(bytes.get(size_of::<Dmar>()..).unwrap_or_default())?;
    }
    // Most machines have none.
    if let Ok(srat) = tables.find_table::<Srat>() {
        read_nodes(&mut machine, &srat);
    }
    Ok(machine)
}

/// Which node everything is of.
fn read_nodes(machine: &mut Machine, srat: &PhysicalMapping<Mapper, Srat>) {
    let (start, len) = (srat.virtual_start().as_ptr() as *const u8, srat.header().length as usize);
    // SAFETY: so much is mapped, and the crate has summed it up; nobody changes what firmware has left there.
    let bytes = unsafe { core::slice::from_raw_parts(start, len) };
    let mut left_out = 0;
    for affinity in affinities(bytes) {
        match affinity {
            // Tables name cores that could be added one day, too.
            Affinity::Core { apic, node } if machine.apics.contains(&apic) => {
                left_out += usize::from(machine.core_nodes.try_push((apic, node)).is_err());
            }
            Affinity::Core { .. } => {}
            Affinity::Memory { start, len, node } => {
                left_out += usize::from(!machine.nodes.add_memory(Extent { start, len }, node));
            }
        }
    }
    if left_out > 0 {
        say!(
            "{left_out} entries of ACPI's SRAT are left out: more than {CORES_MAX} cores or {RANGES_MAX} ranges"
        );
    }
}
