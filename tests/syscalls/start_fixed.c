// How a program starts: at a fixed address, with the C library's loader.
// flags: -no-pie
#include "start.h"
