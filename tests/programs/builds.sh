# Projects as they are: libffi's configure script (autoconf), by bash and by dash, its makefile and some of its tests; bzip2's makefile,
# which runs its tests. They come with crates.
# needs: bash dash make gcc libc6-dev binutils diffutils sed grep mawk
# options: --memory 2G
# timeout: 400
sources=$TESTS/../../target/test-programs/sources
(cd "$TESTS/sources" && cargo vendor --quiet --locked --versioned-dirs "$sources" > /dev/null)
cp -r "$sources"/libffi-sys-*/libffi "$sources"/bzip2-sys-*/bzip2-* .
cat > inner.sh <<'IN'
set -e
for shell in bash dash; do
    mkdir $shell
    cd $shell
    CONFIG_SHELL=/bin/$shell /bin/$shell ../libffi/configure --disable-docs --disable-multi-os-directory CFLAGS=-O1
    cd ..
done
# What they found out is the same, but for where it was.
for file in Makefile fficonfig.h include/ffi.h include/ffitarget.h; do
    sed 's/dash/bash/g' dash/$file | diff - bash/$file
done
cd bash
make -j2 > made 2>&1 || { cat made; exit 1; }
grep -c 'libtool:.*compile:' made
nm -D --defined-only .libs/libffi.so | grep -c ffi_
for test in many pyobjc_tc struct1 float3 nested_struct cls_multi_schar return_ll negint; do
    file=$(find ../libffi/testsuite -name $test.c | grep .)
    gcc -O1 -w -I . -I include -I ../libffi/testsuite/libffi.call -o t "$file" .libs/libffi.a
    ./t > out && echo "$test: $? $(md5sum < out)"
done
make clean > cleaned && ls
cd ../bzip2-*
make -j2 CFLAGS='-O1 -D_FILE_OFFSET_BITS=64' > said 2>&1
make test
nm libbz2.a | grep ' [TDB] ' | sort
IN
$RUN bash inner.sh
rm -rf libffi bzip2-* bash dash inner.sh
