// How a program starts: at a fixed address, with the C library's loader.
// nucleus-differs: hwcap (QEMU's processor is another)
// flags: -no-pie
#include "start.h"
