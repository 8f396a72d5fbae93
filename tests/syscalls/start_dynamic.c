// How a program starts: position-independent, with the C library's loader.
// min-rewritten-percent: 90
#include "start.h"
