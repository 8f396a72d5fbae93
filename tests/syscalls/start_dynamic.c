// How a program starts: position-independent, with the C library's loader.
// nucleus-differs: hwcap (QEMU's processor is another)
// min-rewritten-percent: 90
#include "start.h"
