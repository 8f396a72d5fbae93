# What sync(2) and syncfs(2) are asked for goes on to the device, wherever the program can write.
# needs: strace
log=$SIDE.syncs
strace -f -qq -o "$log" -e trace=sync,syncfs $RUN sh -c 'echo a > f; sync; sync -f f'
[ "$(grep -c 'sync.* = 0$' "$log")" -ge 2 ] && echo "both are done"
rm -f "$log"
