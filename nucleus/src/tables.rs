//! Which cores there are, by ACPI's tables. Read by way of the `acpi` crate, while the first page tables
//! still have all of the first 4 GiB: firmware keeps them in memory that it calls reserved.
#![allow(unsafe_code, reason = "gives the tables' memory to the crate that reads them")]

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};

use arrayvec::ArrayVec;
use atoll_partition::CORES_MAX;

use crate::entry::{DIRECT, MAPPED};
use crate::pvh::Boot;

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
}

/// Asks the tables: ACPI's, or, where there are none, the older ones. Before the nucleus has page tables of
/// its own.
pub fn read(boot: &Boot) -> Result<Machine, &'static str> {
    let mut machine =
        Machine { apics: ArrayVec::new(), apic_address: 0, io_apics: ArrayVec::new(), left_out: 0 };
    if boot.rsdp == 0 {
        let found = crate::mp::read(&mut machine);
        return if found { Ok(machine) } else { Err("there are neither ACPI nor MP tables") };
    }
    // SAFETY: the loader says that it is there; every table's checksum is looked at.
    let tables = unsafe { AcpiTables::from_rsdp(Mapper, boot.rsdp as usize) };
    let madt = tables
        .and_then(|t| t.find_table::<Madt>())
        .map_err(|_| "ACPI has no table of the processors (MADT)")?;
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
    Ok(machine)
}
