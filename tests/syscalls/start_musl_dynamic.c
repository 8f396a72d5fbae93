// How a program starts: with musl's loader.
// compiler: musl-gcc
// min-rewritten-percent: 80
#include "start.h"
