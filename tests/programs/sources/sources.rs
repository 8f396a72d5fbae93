//! Nothing: the sources of the crates that it depends on are what is wanted (`cargo vendor`).
