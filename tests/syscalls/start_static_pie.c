// How a program starts: static and position-independent.
// nucleus-differs: hwcap (QEMU's processor is another)
// flags: -static-pie
#include "start.h"
