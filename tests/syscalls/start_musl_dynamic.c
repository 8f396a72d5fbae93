// How a program starts: with musl's loader.
// nucleus-differs: hwcap (QEMU's processor is another)
// compiler: musl-gcc
// min-rewritten-percent: 80
#include "start.h"
