// As entry_gs_spin.c, for a base of 0.
// options: --cores 1
// flags: -mfsgsbase
// cell-exit: 139
// cell-says: changed the GS base
#define BASE 0
#include "entry_gs_spin.c"
