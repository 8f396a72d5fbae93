// The same under one seed, for where it takes longer.
// timeout: 120
#define SEEDS 1
#include "mappings.c"
