// How a program starts: static.
// flags: -static
#include "start.h"
