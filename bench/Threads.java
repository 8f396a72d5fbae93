// Times what Java's threads do to each other: prints a name and the nanoseconds that it takes, a line each.
import java.util.concurrent.*;

public class Threads {
    interface Work { void run() throws Exception; }

    static void measure(String name, int n, Work work) throws Exception {
        double[] took = new double[5];
        for (int round = -1; round < took.length; round++) {
            long begun = System.nanoTime();
            work.run();
            if (round >= 0) took[round] = (double) (System.nanoTime() - begun) / n;
        }
        java.util.Arrays.sort(took);
        System.out.printf("%s %.2f%n", name, took[took.length / 2]);
    }

    public static void main(String[] arguments) throws Exception {
        int n = 10000;
        measure("Java: start and join of a thread", n / 10, () -> {
            for (int i = 0; i < n / 10; i++) {
                Thread t = new Thread(() -> {});
                t.start();
                t.join();
            }
        });
        measure("Java: SynchronousQueue, there and back", n, () -> {
            SynchronousQueue<Integer> there = new SynchronousQueue<>(), back = new SynchronousQueue<>();
            Thread other = new Thread(() -> {
                try {
                    for (int i = 0; i < n; i++) back.put(there.take());
                } catch (InterruptedException e) { }
            });
            other.start();
            for (int i = 0; i < n; i++) {
                there.put(i);
                back.take();
            }
            other.join();
        });
        measure("Java: a task on a pool of 4 threads", n, () -> {
            ExecutorService pool = Executors.newFixedThreadPool(4);
            CountDownLatch done = new CountDownLatch(n);
            for (int i = 0; i < n; i++) pool.execute(done::countDown);
            done.await();
            pool.shutdown();
        });
        Object lock = new Object();
        measure("Java: wait and notify, there and back", n, () -> {
            boolean[] turn = { false };
            Thread other = new Thread(() -> {
                for (int i = 0; i < n; i++) pass(lock, turn, true);
            });
            other.start();
            for (int i = 0; i < n; i++) pass(lock, turn, false);
            other.join();
        });
        // Some of the pools' threads may still be ending.
        System.exit(0);
    }

    static void pass(Object lock, boolean[] turn, boolean me) {
        synchronized (lock) {
            try {
                while (turn[0] != me) lock.wait();
            } catch (InterruptedException e) { }
            turn[0] = !me;
            lock.notify();
        }
    }
}
