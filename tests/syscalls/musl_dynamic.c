// musl: threads, signals, and a library that is opened by dlopen.
// compiler: musl-gcc
// library: -DLIBRARY
#ifdef LIBRARY
static __thread int own = 7;
int total;
__attribute__((constructor)) static void begin(void) { total = 100; }
int add(int n) { return total += n; }
int next(void) { return own++; }
#else
#include "musl.h"
#endif
