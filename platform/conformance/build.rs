//! Links the suite's runtime as the runtime is linked.

#[path = "../../cell/build.rs"]
mod cell;

fn main() {
    cell::main();
}
