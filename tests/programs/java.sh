# A JVM: what it says of itself, its compiler, its collectors with their own checks of the heap, threads and monitors, files and channels,
# mapped files, sockets, an HTTP server with clients inside and outside, child processes, signals, a thread dump and a tool that attaches.
# needs: openjdk-17-jdk-headless curl
# options: --memory 3G --cores 2
# timeout: 300
java=/usr/lib/jvm/java-17-openjdk-amd64/bin
cat > Main.java <<'J'
import com.sun.net.httpserver.HttpServer;
import java.io.*;
import java.lang.management.ManagementFactory;
import java.net.*;
import java.net.http.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.concurrent.locks.*;
import java.util.stream.*;

public class Main {
    static void say(String what, Object value) { System.out.println(what + ": " + value); }

    static void threads() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(16);
        List<Future<Long>> all = new ArrayList<>();
        for (int n = 0; n < 64; n++) {
            final int from = n * 10_000;
            all.add(pool.submit(() -> LongStream.range(from, from + 10_000).sum()));
        }
        long sum = 0;
        for (Future<Long> f : all) sum += f.get();
        pool.shutdown();
        say("pool", sum + " " + pool.awaitTermination(10, TimeUnit.SECONDS));
        say("fork and join", IntStream.rangeClosed(1, 100_000).parallel().filter(i -> i % 7 == 0).count());

        final int[] counted = {0};
        final Object monitor = new Object();
        AtomicLong atomic = new AtomicLong();
        ReentrantLock lock = new ReentrantLock();
        Condition turn = lock.newCondition();
        final int[] whose = {0};
        Thread[] some = new Thread[4];
        for (int n = 0; n < some.length; n++) {
            final int me = n;
            some[n] = new Thread(() -> {
                for (int i = 0; i < 5_000; i++) {
                    synchronized (monitor) { counted[0]++; }
                    atomic.incrementAndGet();
                    if (i % 10 == 0) {
                        lock.lock();
                        try {
                            while (whose[0] % 4 != me) turn.awaitUninterruptibly();
                            whose[0]++;
                            turn.signalAll();
                        } finally { lock.unlock(); }
                    }
                }
            });
            some[n].start();
        }
        for (Thread t : some) t.join();
        say("monitor, atomic, turns", counted[0] + " " + atomic + " " + whose[0]);

        SynchronousQueue<Integer> queue = new SynchronousQueue<>();
        Thread giver = new Thread(() -> {
            try { for (int i = 0; i < 1000; i++) queue.put(i); } catch (InterruptedException e) { }
        });
        giver.start();
        int taken = 0;
        for (int i = 0; i < 1000; i++) taken += queue.take();
        giver.join();
        say("queue", taken);

        Thread sleeper = new Thread(() -> {
            try { Thread.sleep(60_000); } catch (InterruptedException e) { say("interrupted", Thread.currentThread().isInterrupted()); }
        });
        sleeper.start();
        while (sleeper.getState() != Thread.State.TIMED_WAITING) Thread.onSpinWait();
        sleeper.interrupt();
        sleeper.join();
        ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
        CountDownLatch ticks = new CountDownLatch(20);
        long begun = System.nanoTime();
        timer.scheduleAtFixedRate(ticks::countDown, 0, 5, TimeUnit.MILLISECONDS);
        say("ticks", ticks.await(10, TimeUnit.SECONDS) + " " + (System.nanoTime() - begun >= 95_000_000L));
        timer.shutdownNow();
        Thread[] many = new Thread[500];
        CountDownLatch go = new CountDownLatch(1);
        for (int n = 0; n < many.length; n++) {
            many[n] = new Thread(() -> { try { go.await(); atomic.incrementAndGet(); } catch (InterruptedException e) { } });
            many[n].start();
        }
        go.countDown();
        for (Thread t : many) t.join();
        say("many", atomic);
    }

    static void traps() {
        try { int[] a = new int[3]; a[Integer.parseInt("5")] = 1; } catch (ArrayIndexOutOfBoundsException e) { say("bounds", e.getMessage()); }
        int nulls = 0;
        for (int i = 0; i < 20_000; i++) {
            // Compiled code finds it by SIGSEGV.
            String s = i % 1000 == 999 ? null : "x";
            try { if (s.length() != 1) nulls += 100; } catch (NullPointerException e) { nulls++; }
        }
        int divisions = 0;
        for (int i = 0; i < 20_000; i++) {
            try { if (5 / (i % 1000) > 100) divisions += 100; } catch (ArithmeticException e) { divisions++; }
        }
        say("null, division", nulls + " " + divisions);
        try { deep(0); } catch (StackOverflowError e) { say("stack", "overflows"); }
        try { say("heap", new long[Integer.MAX_VALUE - 8].length); } catch (OutOfMemoryError e) { say("heap", e.getMessage()); }
    }

    static int deep(int n) { return deep(n + 1) + 1; }

    static void files() throws Exception {
        Path dir = Files.createDirectories(Path.of("files/a/b"));
        Path file = dir.resolve("f.txt");
        Files.writeString(file, "eins\nzwei\ndrei\n");
        say("lines", Files.readAllLines(file));
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-r-----"));
        Files.createSymbolicLink(dir.resolve("link"), Path.of("f.txt"));
        PosixFileAttributes a = Files.readAttributes(file, PosixFileAttributes.class);
        say("attributes", a.size() + " " + PosixFilePermissions.toString(a.permissions()) + " " + a.isRegularFile());
        Files.move(file, dir.resolve("g.txt"), StandardCopyOption.ATOMIC_MOVE);
        try (Stream<Path> s = Files.walk(Path.of("files"))) { say("walk", s.map(Path::toString).sorted().toList()); }
        try (FileChannel c = FileChannel.open(Path.of("mapped"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 20; i += 4) m.putInt(i, i * 31);
            m.force();
            ByteBuffer b = ByteBuffer.allocateDirect(4);
            c.read(b, 400_000);
            say("mapped", b.flip().getInt() == 400_000 * 31);
            try (FileLock l = c.lock()) { say("lock", l.isValid() && !l.isShared()); }
        }
        try (WatchService w = FileSystems.getDefault().newWatchService()) {
            dir.register(w, StandardWatchEventKinds.ENTRY_CREATE);
            Files.createFile(dir.resolve("new"));
            WatchKey k = w.poll(10, TimeUnit.SECONDS);
            say("watch", k == null ? null : k.pollEvents().get(0).context());
        }
        Path t = Files.createTempFile("x", ".tmp");
        say("temporary", t.startsWith("/tmp") && Files.deleteIfExists(t));
    }

    static void network() throws Exception {
        ServerSocketChannel server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        server.configureBlocking(false);
        Selector selector = Selector.open();
        server.register(selector, SelectionKey.OP_ACCEPT);
        int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
        Thread echo = new Thread(() -> {
            try {
                int closed = 0;
                while (closed < 3) {
                    selector.select();
                    for (SelectionKey k : selector.selectedKeys()) {
                        if (k.isAcceptable()) {
                            SocketChannel c = server.accept();
                            c.configureBlocking(false);
                            c.register(selector, SelectionKey.OP_READ);
                        } else if (k.isReadable()) {
                            ByteBuffer b = ByteBuffer.allocate(4096);
                            SocketChannel c = (SocketChannel) k.channel();
                            if (c.read(b) < 0) { c.close(); closed++; continue; }
                            b.flip();
                            while (b.hasRemaining()) c.write(b);
                        }
                    }
                    selector.selectedKeys().clear();
                }
            } catch (IOException e) { e.printStackTrace(); }
        });
        echo.start();
        for (int n = 0; n < 3; n++) {
            try (Socket s = new Socket("127.0.0.1", port)) {
                s.setTcpNoDelay(true);
                s.getOutputStream().write(("hallo " + n).getBytes());
                say("echo", new String(s.getInputStream().readNBytes(7)));
            }
        }
        echo.join();
        try (DatagramSocket a = new DatagramSocket(0, InetAddress.getLoopbackAddress()); DatagramSocket b = new DatagramSocket()) {
            b.send(new DatagramPacket("packet".getBytes(), 6, InetAddress.getLoopbackAddress(), a.getLocalPort()));
            DatagramPacket p = new DatagramPacket(new byte[100], 100);
            a.receive(p);
            say("datagram", new String(p.getData(), 0, p.getLength()));
            a.setSoTimeout(50);
            try { a.receive(p); } catch (SocketTimeoutException e) { say("timeout", e.getMessage()); }
        }
        UnixDomainSocketAddress at = UnixDomainSocketAddress.of("java.sock");
        try (ServerSocketChannel u = ServerSocketChannel.open(StandardProtocolFamily.UNIX).bind(at); SocketChannel c = SocketChannel.open(at); SocketChannel d = u.accept()) {
            c.write(ByteBuffer.wrap("unix".getBytes()));
            ByteBuffer b = ByteBuffer.allocate(10);
            say("unix", d.read(b));
        }
        Files.delete(at.getPath());
    }

    static HttpServer http(int port) throws Exception {
        HttpServer http = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        http.setExecutor(Executors.newFixedThreadPool(4, r -> { Thread t = new Thread(r); t.setDaemon(true); return t; }));
        http.createContext("/", x -> {
            byte[] answer = (x.getRequestMethod() + " " + x.getRequestURI() + " " + x.getRequestBody().readAllBytes().length + "\n").getBytes();
            x.sendResponseHeaders(200, answer.length);
            try (OutputStream o = x.getResponseBody()) { o.write(answer); }
        });
        http.start();
        HttpClient client = HttpClient.newHttpClient();
        List<CompletableFuture<String>> all = new ArrayList<>();
        for (int n = 0; n < 40; n++) {
            HttpRequest r = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/" + n)).timeout(Duration.ofSeconds(20))
                .POST(HttpRequest.BodyPublishers.ofString("x".repeat(n * 100))).build();
            all.add(client.sendAsync(r, HttpResponse.BodyHandlers.ofString()).thenApply(HttpResponse::body));
        }
        say("http", all.stream().map(CompletableFuture::join).collect(Collectors.joining()).hashCode());
        return http;
    }

    static void processes() throws Exception {
        Process p = new ProcessBuilder("sh", "-c", "read x; echo got $x; echo bad >&2; exit 3").redirectErrorStream(true).start();
        p.getOutputStream().write("line\n".getBytes());
        p.getOutputStream().close();
        String out = new String(p.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        say("child", p.waitFor() + " " + out.replace('\n', '|'));
        List<ProcessBuilder> line = List.of(new ProcessBuilder("seq", "1000"), new ProcessBuilder("grep", "7"), new ProcessBuilder("wc", "-l"));
        List<Process> all = ProcessBuilder.startPipeline(line);
        say("pipeline", new String(all.get(2).getInputStream().readAllBytes()).trim());
        Process sleeps = new ProcessBuilder("sleep", "60").start();
        say("alive", sleeps.isAlive() + " " + sleeps.toHandle().info().command().isPresent());
        sleeps.destroy();
        say("destroyed", sleeps.waitFor());
    }

    public static void main(String[] a) throws Exception {
        say("processors", Runtime.getRuntime().availableProcessors());
        say("arguments", ManagementFactory.getRuntimeMXBean().getInputArguments().size() >= 0);
        threads();
        traps();
        files();
        network();
        processes();
        int port = Integer.parseInt(a[0]);
        HttpServer http = http(port);
        CountDownLatch end = new CountDownLatch(1);
        http.createContext("/end", x -> { x.sendResponseHeaders(200, -1); x.close(); end.countDown(); });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> say("hook", "runs")));
        System.out.println("serving");
        end.await();
        http.stop(0);
        // Until a signal ends it.
        Thread.sleep(60_000);
    }
}
J
cat > Heap.java <<'J'
import java.lang.ref.*;
import java.util.*;

/** Trees, strings and arrays that live and die, of which some stay; their sum tells whether all are as they were. */
public class Heap {
    record Node(Node left, Node right, long value) {
        static Node of(int depth, long value) {
            return depth == 0 ? new Node(null, null, value) : new Node(of(depth - 1, value * 2), of(depth - 1, value * 2 + 1), value);
        }
        long sum() { return value + (left == null ? 0 : left.sum() + right.sum()); }
    }
    public static void main(String[] a) throws Exception {
        Map<Integer, Object> kept = new HashMap<>();
        Random random = new Random(1);
        List<WeakReference<Object>> weak = new ArrayList<>();
        long sum = 0;
        for (int n = 0; n < 3_000; n++) {
            switch (random.nextInt(4)) {
                case 0 -> kept.put(random.nextInt(150), Node.of(8, n));
                case 1 -> kept.put(random.nextInt(150), "text ".repeat(random.nextInt(2000)) + n);
                case 2 -> kept.put(random.nextInt(150), new long[random.nextInt(20_000)]);
                default -> { Object o = new byte[10_000]; weak.add(new WeakReference<>(o)); sum += Node.of(6, n).sum(); }
            }
        }
        for (int key = 0; key < 150; key++) {
            Object o = kept.get(key);
            sum = sum * 31 + (o instanceof Node t ? t.sum() : o instanceof String s ? s.hashCode() : o instanceof long[] l ? l.length + Arrays.stream(l).sum() : 0);
        }
        System.gc();
        System.out.println("heap " + sum + " " + weak.stream().allMatch(w -> w.get() == null));
    }
}
J
cat > inner.sh <<'IN'
set -e
PATH=$JAVA:$PATH
java -version 2>&1 | sed 's/[0-9]\{4\}-[0-9-]*//'
javac -d classes -Xlint:-options Main.java Heap.java
ls classes | grep -c class
jar --create --file heap.jar --main-class Heap -C classes .
for gc in Serial Parallel G1 Shenandoah Z; do
    checks="-XX:+UnlockDiagnosticVMOptions -XX:+VerifyBeforeGC -XX:+VerifyAfterGC"
    case $gc in Z) checks="-XX:+UnlockDiagnosticVMOptions -XX:+ZVerifyViews -XX:+ZVerifyRoots" ;; Shenandoah) checks="-XX:+UnlockDiagnosticVMOptions -XX:+ShenandoahVerify" ;; esac
    echo "$gc $(java -Xmx96m -XX:+Use${gc}GC $checks -jar heap.jar 2>&1)"
done
for mode in -Xint -XX:TieredStopAtLevel=1 -XX:-TieredCompilation -XX:+UseLargePages -Xshare:off -XX:-UseCompressedOops; do
    echo "$mode $(java -Xmx256m $mode -cp classes Heap 2>&1 | grep -v 'warning')"
done
echo 'System.out.println(IntStream.range(0, 10).sum());' | jshell -s -
java -Xmx512m -cp classes Main $PORT > said 2>&1 &
until grep -q serving said; do sleep 0.05; kill -0 $!; done
kill -QUIT $!
until grep -q 'JNI global refs' said; do sleep 0.05; done
jps | grep -c Main
jcmd $! VM.version | grep -c OpenJDK
jcmd $! Thread.print | grep -c '"main"'
jstat -gc $! | wc -l
touch ready
until [ -e asked ]; do sleep 0.05; done
kill -TERM $!
code=0
wait $! || code=$?
echo "ended with $code"
sed -e '/^Full thread dump/,/^JNI global refs/d' -e '/^$/d' -e '/^[0-9-]* [0-9:]*$/d' said | grep -v '^ \|^Heap\|^"' 
IN
JAVA=$java PORT=$PORT $RUN bash inner.sh &
p=$!
until [ -e ready ]; do sleep 0.05; kill -0 $p; done
for n in 1 2 3; do curl -s "http://127.0.0.1:$PORT/outside/$n" -d "$n$n"; done
curl -s "http://127.0.0.1:$PORT/end"
touch asked
wait $p
rm -rf classes files heap.jar mapped said ready asked inner.sh ./*.java
