# needs: make gcc libc6-dev binutils
# options: --memory 2G
# timeout: 120
# A program in several files is configured by a script, built by make with gcc, two jobs at a time, tested and installed; then one of
# its files is changed and built again.
mkdir -p "$DIR/src"
for n in $(seq 12); do
	cat > "$DIR/src/part$n.c" <<-END
		#include <stdio.h>
		#include <stdlib.h>
		#include <string.h>
		#include "parts.h"
		static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
		int part$n(int seed) {
		    int v[256]; unsigned x = seed + $n;
		    for (int i = 0; i < 256; i++) v[i] = (x = x * 1103515245 + 12345) >> 16;
		    qsort(v, 256, sizeof *v, compare);
		    return v[$n] ^ v[255 - $n];
		}
	END
done
{
	for n in $(seq 12); do echo "int part$n(int);"; done
} > "$DIR/src/parts.h"
{
	echo '#include <stdio.h>'
	echo '#include "parts.h"'
	echo 'int main(void) { unsigned s = 0;'
	for n in $(seq 12); do echo "s = s * 31 + part$n($n);"; done
	echo 'printf("%s %u\n", NAME, s); return 0; }'
} > "$DIR/src/main.c"
cat > "$DIR/src/configure" <<'END'
#!/bin/sh
# What such scripts do: try the compiler, look at its output by way of pipes, write a makefile with sed.
set -e
src=$(cd "$(dirname "$0")" && pwd)
try() { printf 'checking %s... ' "$1"; if (eval "$2") > conftest.out 2>&1; then echo yes; return 0; else echo no; return 1; fi; }
echo 'int main(void){return sizeof(long)-8;}' > conftest.c
try 'whether the C compiler works' 'gcc -o conftest conftest.c'
try 'for 8-byte long' './conftest' && long=8
for header in stdio.h sys/epoll.h not_there.h; do
	echo "#include <$header>" > conftest.c
	try "for $header" 'gcc -E conftest.c' || true
done
echo 'double sqrt(double); int main(int c, char **v){return (int)sqrt(c);}' > conftest.c
try 'for sqrt in libm' 'gcc -o conftest conftest.c -lm' && libs=-lm
version=$(gcc -dumpmachine | sed 's/-.*//')
objects=$(ls "$src" | sed -n 's/\.c$/.o/p' | tr '\n' ' ')
sed -e "s|@src@|$src|g" -e "s|@libs@|$libs|" -e "s|@objects@|$objects|" -e "s|@name@|$version-$long|" > Makefile <<'MAKE'
VPATH = @src@
CFLAGS = -O1 -Wall -I@src@ -DNAME='"@name@"'
program: @objects@
	gcc -o $@ $^ @libs@
%.o: %.c parts.h
	gcc $(CFLAGS) -c -o $@ $<
check: program
	./program | tee result | grep -q @name@
install: check
	mkdir -p out/bin && install -m 755 program out/bin/
clean:
	rm -f *.o program result conftest*
.PHONY: check install clean
MAKE
rm -f conftest*
echo created Makefile
END
chmod +x "$DIR/src/configure"
$RUN src/configure
$RUN make -j2 | sort > log
wc -l < log
$RUN make -s check
cat result
$RUN make -s install
ls out/bin
sleep 1.1
touch "$DIR/src/part7.c"
$RUN make -j2 | wc -l
$RUN make -q && echo "nothing left to do"
echo 'int broken(' > "$DIR/src/part3.c"
$RUN make -k -j2 2>&1 | grep -c Error || true
$RUN make clean > log
# Programs have the paths of this directory in them.
rm -rf "$DIR"/*
