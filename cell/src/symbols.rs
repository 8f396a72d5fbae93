//! What the compiler and the core library want a runtime binary to have, where nothing unwinds: a panic ends the cell.
#![allow(unsafe_code, reason = "symbols that core and alloc refer to")]

use atoll_abi::core_local::core_local;
use atoll_abi::platform::platform;
use atoll_platform_entry::line::Line;

/// Code that was compiled with unwinding in mind refers to this; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The same.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing unwinds in the runtime")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let mut line = Line::new();
    let _ = core::fmt::write(&mut line, format_args!("panic on core {}: {info}", core_local().id()));
    platform().log(line.as_str());
    platform().end(128 + 6)
}
