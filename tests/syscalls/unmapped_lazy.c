// The same in a cell that unmaps lazily, but that what is gone faults at once.
// options: --lazy-unmap
// timeout: 60
#define LAZY 1
#include "unmapped.c"
