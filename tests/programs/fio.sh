# needs: fio
# options: --cores 2
# timeout: 60
# fio writes, reads and verifies by Linux's asynchronous I/O, with libaio: through the page cache and past it, taking events by a call
# and out of the ring itself, one or several at a time.
job() {
	$RUN fio --name=job --ioengine=libaio --filename="$DIR/file" --size=8m --bs=4k --verify=crc32c --verify_fatal=1 --do_verify=1 \
		--verify_state_save=0 --randseed=1 --output-format=terse --terse-version=3 "${@:2}" > "$DIR/out" || cat "$DIR/out" >&2
	# The error, and KiB that were read and written.
	tail -n 1 "$DIR/out" | awk -F';' -v what="$1" '{ print what ": " $5, $6, $47 }'
	rm "$DIR/out" "$DIR/file"
}
job cached --rw=randwrite --iodepth=16
job direct --rw=randwrite --iodepth=16 --direct=1 --iodepth_batch=8 --iodepth_batch_complete_min=4
job ring --rw=write --iodepth=32 --userspace_reap=1
job mixed --rw=randrw --iodepth=8 --fdatasync=32
