# The C library's loader in a cell (OV-01): LD_PRELOAD, LD_LIBRARY_PATH, $ORIGIN, the loader run as a program, musl's.
# needs: gcc musl-tools
cat > lib.c <<'C'
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { puts(NAME " is loaded"); }
int number(void) { return NUMBER; }
C
cat > main.c <<'C'
#include <stdio.h>
int number(void);
int main(void) { printf("number %d\n", number()); return 0; }
C
mkdir one two
gcc -shared -fPIC -DNAME='"one"' -DNUMBER=1 -o one/libnumber.so lib.c
gcc -shared -fPIC -DNAME='"two"' -DNUMBER=2 -o two/libnumber.so lib.c
cat > over.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <sys/types.h>
pid_t getppid(void) { return 12345; }
int number(void) { return 100 + ((int (*)(void))dlsym(RTLD_NEXT, "number"))(); }
C
gcc -shared -fPIC -o over.so over.c
gcc -o searching main.c -Lone -lnumber
gcc -o origin main.c -Ltwo -lnumber -Wl,-rpath,'$ORIGIN/two'
# Set inside, so that it is not for `atoll` itself.
ENV="$RUN /usr/bin/env"
ONE="$ENV LD_LIBRARY_PATH=$DIR/one"
$ONE ./searching
$ENV LD_LIBRARY_PATH=/nowhere:$DIR/two ./searching
$RUN ./origin
$ONE ./origin
$ENV LD_PRELOAD=$DIR/over.so ./origin
$ENV LD_PRELOAD=$DIR/over.so /usr/bin/perl -e 'print getppid(), "\n"'
$ENV LD_PRELOAD=$DIR/one/libnumber.so ./origin
status=0; $RUN ./searching 2> /dev/null || status=$?; echo "not found: $status"
$ENV LD_BIND_NOW=1 ./origin
$RUN /lib64/ld-linux-x86-64.so.2 --library-path $DIR/two ./searching
musl-gcc -shared -fPIC -DNAME='"musl one"' -DNUMBER=3 -o one/libmusl.so lib.c
musl-gcc -o musl main.c -Lone -lmusl
$ONE ./musl
$ENV LD_LIBRARY_PATH=$DIR/one LD_PRELOAD=$DIR/one/libmusl.so ./musl
status=0; $RUN ./musl 2> /dev/null || status=$?; echo "not found: $status"
rm -r one two *.c over.so searching origin musl
