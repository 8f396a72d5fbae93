// How a program starts: static, with musl.
// nucleus-differs: hwcap (QEMU's processor is another)
// compiler: musl-gcc
// flags: -static
// min-rewritten-percent: 80
#include "start.h"
