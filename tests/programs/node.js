// What a Node.js server uses: event loop, timers, files, sockets, threads,
// children, signals, compression, cryptography, names.
'use strict';
const assert = require('assert');
const { once } = require('events');
const crypto = require('crypto');
const dgram = require('dgram');
const dns = require('dns').promises;
const fs = require('fs');
const http = require('http');
const net = require('net');
const os = require('os');
const path = require('path');
const zlib = require('zlib');
const { promisify } = require('util');
const { setTimeout: sleep } = require('timers/promises');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { spawn, execFile, spawnSync } = require('child_process');

async function timers() {
	const first = [];
	setImmediate(() => first.push('immediate'));
	process.nextTick(() => first.push('tick'));
	Promise.resolve().then(() => first.push('promise'));
	await new Promise(setImmediate);
	console.log('first', first.join(' '));
	const order = [];
	// From a callback of input or output an immediate comes before every timer, however long
	// either takes; from the main module a timer that is due by then comes first.
	let start;
	await new Promise((done) => fs.stat('.', () => {
		setImmediate(() => order.push('immediate'));
		process.nextTick(() => order.push('tick'));
		Promise.resolve().then(() => order.push('promise'));
		start = process.hrtime.bigint();
		done(Promise.all([30, 10, 20].map((ms) => sleep(ms).then(() => order.push(ms)))));
	}));
	console.log('timers', order.join(' '), process.hrtime.bigint() - start >= 29000000n);
	let n = 0;
	await new Promise((done) => {
		const t = setInterval(() => { if (++n === 5) { clearInterval(t); done(); } }, 2);
	});
	console.log('interval', n);
}

async function files() {
	await fs.promises.mkdir('deep/er', { recursive: true });
	const text = 'line of text\n'.repeat(20000);
	await fs.promises.writeFile('deep/er/file', text);
	const back = await fs.promises.readFile('deep/er/file', 'utf8');
	console.log('file', back === text, (await fs.promises.stat('deep/er/file')).size);
	await fs.promises.rename('deep/er/file', 'file');
	await fs.promises.symlink('file', 'link');
	console.log('link', await fs.promises.readlink('link'), (await fs.promises.readdir('.')).sort().join(' '));
	const handles = await Promise.all(Array.from({ length: 50 }, (_, i) =>
		fs.promises.writeFile(`deep/${i}`, String(i)).then(() => fs.promises.readFile(`deep/${i}`, 'utf8'))));
	console.log('many', handles.reduce((a, b) => a + Number(b), 0));
	const { pipeline } = require('stream/promises');
	await pipeline(fs.createReadStream('file'), zlib.createGzip(), fs.createWriteStream('file.gz'));
	const plain = zlib.gunzipSync(fs.readFileSync('file.gz'));
	console.log('pipeline', plain.length);
	await fs.promises.rm('deep', { recursive: true });
	await fs.promises.unlink('link');
	await fs.promises.unlink('file.gz');
	await fs.promises.unlink('file');
	try {
		await fs.promises.readFile('nothing');
	} catch (e) {
		console.log('missing', e.code);
	}
}

async function web() {
	const server = http.createServer((req, res) => {
		const parts = [];
		req.on('data', (d) => parts.push(d));
		req.on('end', () => res.end(`${req.method} ${req.url} ${Buffer.concat(parts).length}`));
	});
	server.listen(0, '127.0.0.1');
	await once(server, 'listening');
	const { port } = server.address();
	const agent = new http.Agent({ keepAlive: true, maxSockets: 10 });
	const get = (n) => new Promise((done, fail) => {
		const req = http.request({ host: '127.0.0.1', port, path: `/${n}`, method: 'POST', agent }, (res) => {
			let body = '';
			res.on('data', (d) => { body += d; });
			res.on('end', () => done(body));
		});
		req.on('error', fail);
		req.end(Buffer.alloc(n * 1000, 'x'));
	});
	const answers = await Promise.all(Array.from({ length: 100 }, (_, n) => get(n)));
	console.log('http', answers.filter((a, n) => a === `POST /${n} ${n * 1000}`).length);
	const fetched = await (await fetch(`http://127.0.0.1:${port}/fetched`)).text();
	console.log('fetch', fetched);
	agent.destroy();
	server.closeAllConnections();
	server.close();
	await once(server, 'close');

	const echo = net.createServer((s) => s.pipe(s));
	echo.listen('socket');
	await once(echo, 'listening');
	const c = net.connect('socket');
	c.end('over a unix socket');
	let text = '';
	for await (const d of c) text += d;
	console.log(text);
	echo.close();

	const udp = dgram.createSocket('udp4');
	udp.bind(0, '127.0.0.1');
	await once(udp, 'listening');
	udp.on('message', (m, from) => { if (m[0] !== 33) udp.send(`!${m}`, from.port, from.address); else udp.emit('back', m); });
	udp.send('datagram', udp.address().port, '127.0.0.1');
	const [m] = await once(udp, 'back');
	console.log('udp', m.toString());
	udp.close();

	const refused = net.connect(port, '127.0.0.1');
	const [e] = await once(refused, 'error');
	console.log('refused', e.code);
}

async function threads() {
	const shared = new Int32Array(new SharedArrayBuffer(8));
	const workers = [1, 2, 3].map((n) => new Worker(__filename, { workerData: { shared, n } }));
	// Listened for from the start: one may be gone before another has spoken.
	const exits = workers.map(async (w) => (await once(w, 'exit'))[0]);
	const said = await Promise.all(workers.map(async (w) => (await once(w, 'message'))[0]));
	const codes = await Promise.all(exits);
	console.log('workers', said.join(' '), 'count', shared[0], 'codes', codes.join(' '));
}

function worker() {
	for (let i = 0; i < 10000; i++) Atomics.add(workerData.shared, 0, 1);
	if (Atomics.add(workerData.shared, 1, 1) === 2) Atomics.notify(workerData.shared, 1);
	else while (Atomics.load(workerData.shared, 1) < 3) Atomics.wait(workerData.shared, 1, Atomics.load(workerData.shared, 1), 20);
	parentPort.postMessage(workerData.n * 11);
}

async function secrets() {
	console.log('sha256', crypto.createHash('sha256').update('atoll').digest('hex'));
	const key = await promisify(crypto.scrypt)('password', 'salt', 32);
	const iv = Buffer.alloc(12, 1);
	const cipher = crypto.createCipheriv('aes-256-gcm', key, iv);
	const text = Buffer.concat([cipher.update('secret', 'utf8'), cipher.final()]);
	const decipher = crypto.createDecipheriv('aes-256-gcm', key, iv);
	decipher.setAuthTag(cipher.getAuthTag());
	console.log('aes', text.toString('hex'), decipher.update(text, undefined, 'utf8') + decipher.final('utf8'));
	console.log('random', crypto.randomBytes(16).length, crypto.randomUUID().length);
	const { publicKey, privateKey } = await promisify(crypto.generateKeyPair)('ec', { namedCurve: 'P-256' });
	const signature = crypto.sign('sha256', Buffer.from('text'), privateKey);
	console.log('signed', crypto.verify('sha256', Buffer.from('text'), publicKey, signature));
	const deflated = await promisify(zlib.brotliCompress)(Buffer.alloc(100000, 'ab'));
	console.log('brotli', (await promisify(zlib.brotliDecompress)(deflated)).length);
}

async function signals() {
	// A listener alone keeps no process alive.
	const alive = setInterval(() => {}, 1000);
	for (const s of ['SIGTERM', 'SIGUSR2', 'SIGHUP']) {
		const got = once(process, s);
		process.kill(process.pid, s);
		console.log('signal', (await got)[0]);
	}
	clearInterval(alive);
}

async function names() {
	const { address } = await dns.lookup('localhost', 4);
	console.log('localhost', address);
	try {
		await dns.lookup('no-such-name.invalid');
	} catch (e) {
		console.log('unknown', ['ENOTFOUND', 'EAI_AGAIN'].includes(e.code));
	}
	console.log('machine', os.type(), os.arch(), os.cpus().length > 0, os.totalmem() > os.freemem(), path.sep);
}

// libuv starts children by fork.
async function children() {
	const status = await new Promise((done) => {
		let c;
		try {
			c = spawn('echo', ['from', 'a', 'child']);
		} catch (e) {
			done(e.code);
			return;
		}
		let out = '';
		c.stdout.on('data', (d) => { out += d; });
		c.on('error', (e) => done(e.code));
		c.on('close', (code) => done(`${code} ${out.trim()}`));
	});
	const sync = spawnSync('true');
	const failed = await new Promise((done) => {
		try {
			execFile('/no/such/program', (e) => done(e.code));
		} catch (e) {
			done(e.code);
		}
	});
	assert.strictEqual(status, '0 from a child');
	assert.strictEqual(sync.status, 0);
	assert.strictEqual(failed, 'ENOENT');
	console.log('children as expected');
}

async function main() {
	await timers();
	await files();
	await web();
	await threads();
	await secrets();
	await signals();
	await names();
	await children();
	const busy = process.cpuUsage();
	console.log('usage', busy.user > 0, process.memoryUsage().rss > 1 << 20, process.uptime() > 0);
	process.on('exit', (code) => console.log('exit', code));
	process.exitCode = 3;
}

if (isMainThread) main(); else worker();
