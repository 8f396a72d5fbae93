// How a program starts: static, with musl.
// compiler: musl-gcc
// flags: -static
// min-rewritten-percent: 80
#include "start.h"
