// How a program starts: static.
// nucleus-differs: hwcap (QEMU's processor is another)
// flags: -static
#include "start.h"
