// Work that is mostly memory: prints what was done and the nanoseconds that it took, a line each.
'use strict';
function timed(name, work) {
  const begun = process.hrtime.bigint();
  work();
  console.log(`${name} ${process.hrtime.bigint() - begun}`);
}
const tree = (depth) => (depth ? { left: tree(depth - 1), right: tree(depth - 1) } : {});
timed('node: a map of 2,000,000 texts', () => {
  const map = new Map();
  for (let n = 0; n < 2_000_000; n++) map.set(String(n), n);
});
timed('node: binary trees of a depth of 18, sixteen one after the other', () => {
  for (let n = 0; n < 16; n++) tree(18);
});
timed('node: an array of 8,000,000 numbers, sorted', () => {
  const array = new Float64Array(8_000_000);
  for (let n = 0; n < array.length; n++) array[n] = (n * 7919) % array.length;
  array.sort();
});
timed('node: buffers of 256 KiB to 3 MiB that come and go', () => {
  const kept = [];
  for (let n = 0; n < 400; n++) {
    kept.push(Buffer.alloc(((n % 13) + 1) << 18, 1));
    if (kept.length > 24) kept.splice(0, 8);
  }
});
