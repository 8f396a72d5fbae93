// musl: threads and signals, static; such a program opens no library.
// compiler: musl-gcc
// flags: -static
#include "musl.h"
