// How a program starts: static and position-independent.
// flags: -static-pie
#include "start.h"
