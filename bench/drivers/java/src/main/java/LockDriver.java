import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.TransportMode;

/**
 * Takes locks of Redisson or Curator as the lines of standard input say:
 * {@code what kind port clients locks sectionMicros warmUpMillis measureMillis
 * leaseMillis settleMillis}. Every client is a thread. Of the kind {@code lock} the
 * threads share one RedissonClient, as those of one process do: a release wakes one of
 * them, not all. Of the kind {@code apart} each has its own, as if it were a process of
 * its own; of the kind {@code watchdog} also, and each hold is renewed. Of the kind
 * {@code curator} each has a session of ZooKeeper.
 */
public final class LockDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int MOST_CONNECTIONS = 64;
    /** More only compete with each other on a machine that the server shares. */
    private static final int NETTY_THREADS = Integer.getInteger("nettyThreads", 4);
    private static final EventLoopGroup EVENT_LOOPS =
        new MultiThreadIoEventLoopGroup(NETTY_THREADS, NioIoHandler.newFactory());
    private static final ExecutorService EXECUTOR = Executors.newFixedThreadPool(4);
    /** What the JVM has to learn when it sees a kind of work for the first time. */
    private static final long FIRST_WARM_UP_NANOS = TimeUnit.SECONDS.toNanos(4);
    private static final Set<String> KNOWN = new HashSet<>();

    /** Takes a lock; gives back what it took; closes. */
    private interface Client extends AutoCloseable {
        Release take(String name) throws Exception;

        @Override
        void close();
    }

    private interface Release {
        void run() throws Exception;
    }

    private interface Work {
        void run() throws Exception;
    }

    private final List<Client> connected = new ArrayList<>();
    private final int clients;
    private final int locks;
    private final long sectionNanos;
    private final long warmUpNanos;
    private final long measureNanos;
    private final int leaseMillis;
    /** How long all have to come back to their wait after a hand-off, and as much again. */
    private final long settleNanos;
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean over;

    private LockDriver(String[] words) throws InterruptedException {
        int port = Integer.parseInt(words[2]);
        clients = Integer.parseInt(words[3]);
        locks = Integer.parseInt(words[4]);
        sectionNanos = TimeUnit.MICROSECONDS.toNanos(Long.parseLong(words[5]));
        warmUpNanos = KNOWN.add(words[0] + words[1])
            ? FIRST_WARM_UP_NANOS
            : TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[6]));
        measureNanos = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[7]));
        leaseMillis = Integer.parseInt(words[8]);
        settleNanos = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[9]));
        boolean together = words[1].equals("lock");
        for (int i = 0; i < (together ? 1 : clients); i++) {
            connected.add(words[1].equals("curator")
                ? zooKeeper(port)
                : redisson(port, together ? Math.min(clients, MOST_CONNECTIONS) : 1,
                    words[1].equals("watchdog")));
        }
    }

    private Client redisson(int port, int connections, boolean watchdog) {
        RedissonClient redisson = connect(port, connections, leaseMillis);
        return new Client() {
            @Override
            public Release take(String name) {
                RLock lock = redisson.getLock(name);
                if (watchdog) {
                    lock.lock();
                } else {
                    lock.lock(leaseMillis, TimeUnit.MILLISECONDS);
                }
                return lock::unlock;
            }

            @Override
            public void close() {
                redisson.shutdown(0, 2, TimeUnit.SECONDS);
            }
        };
    }

    private Client zooKeeper(int port) throws InterruptedException {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(
            "127.0.0.1:" + port, leaseMillis, 15_000, new RetryOneTime(100));
        curator.start();
        if (!curator.blockUntilConnected(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("ZooKeeper does not answer");
        }
        return new Client() {
            @Override
            public Release take(String name) throws Exception {
                InterProcessMutex mutex = new InterProcessMutex(curator, "/" + name);
                mutex.acquire();
                return mutex::release;
            }

            @Override
            public void close() {
                curator.close();
            }
        };
    }

    private static RedissonClient connect(int port, int connections, int leaseMillis) {
        Config config = new Config();
        config.setEventLoopGroup(EVENT_LOOPS)
            .setTransportMode(TransportMode.NIO)
            .setExecutor(EXECUTOR)
            .setLockWatchdogTimeout(leaseMillis)
            .setCodec(StringCodec.INSTANCE);
        config.useSingleServer()
            .setAddress("redis://127.0.0.1:" + port)
            .setConnectionPoolSize(connections)
            .setConnectionMinimumIdleSize(connections)
            .setSubscriptionConnectionPoolSize(1)
            .setSubscriptionConnectionMinimumIdleSize(1)
            .setSubscriptionsPerConnection(2_000);
        return Redisson.create(config);
    }

    private Client client(int n) {
        return connected.get(n % connected.size());
    }

    public static void main(String[] args) throws IOException {
        say("ready", settings());
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split(" ");
            try {
                // Said when all has been shut down: that is not to be felt by who comes next.
                LockDriver driver = new LockDriver(words);
                if (words[0].equals("hold")) {
                    driver.hold();
                } else {
                    say("done", driver.run(words[0]));
                }
            } catch (Exception error) {
                say("failed", error.toString());
            }
        }
        System.exit(0);
    }

    private static String settings() {
        return "Redisson " + Redisson.class.getPackage().getImplementationVersion()
            + " on Java " + Runtime.version().feature() + " (parallel collector): single server, "
            + NETTY_THREADS + " netty threads, a connection for each client up to "
            + MOST_CONNECTIONS + ", all kept open, every client a thread, lock(30 s) without "
            + "watchdog, warmed up by 4 s of each kind of work and by 0.3 s more on each server";
    }

    private static void say(String what, Object value) throws JsonProcessingException {
        System.out.println(JSON.writeValueAsString(Map.of(what, value)));
    }

    private Map<String, Object> run(String what) throws Exception {
        try {
            return switch (what) {
                case "uncontended", "contended", "sections" -> loop(what);
                case "hand-off" -> handOff();
                default -> throw new IllegalArgumentException(what);
            };
        } finally {
            connected.forEach(Client::close);
        }
    }

    private void start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                failure.set(error);
                over = true;
            }
        });
        threads.add(thread);
        thread.start();
    }

    private void end() throws Exception {
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static Map<String, Object> measured(double seconds, List<Long> latencies, long[] shares) {
        return Map.of("seconds", seconds, "latenciesNs", latencies, "shares", shares);
    }

    /** Every client takes and gives back one of the locks, over and over. */
    private Map<String, Object> loop(String what) throws Exception {
        long begin = System.nanoTime() + warmUpNanos;
        long end = begin + measureNanos;
        long[] shares = new long[clients];
        List<List<Long>> latencies = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            int n = i;
            List<Long> mine = new ArrayList<>();
            latencies.add(mine);
            start(() -> {
                while (!over) {
                    int lock = what.equals("sections")
                        ? ThreadLocalRandom.current().nextInt(locks)
                        : n % locks;
                    long wanted = System.nanoTime();
                    Release release = client(n).take("lock:" + lock);
                    long held = System.nanoTime();
                    if (sectionNanos > 0) {
                        LockSupport.parkNanos(sectionNanos);
                    }
                    release.run();
                    if (held > begin && held <= end) {
                        shares[n]++;
                        mine.add((what.equals("uncontended") ? System.nanoTime() : held) - wanted);
                    } else if (held > end && wanted < end) {
                        // It still waited at the end, and so long at least.
                        mine.add(end - wanted);
                    }
                }
            });
        }
        sleepUntil(begin);
        System.out.println("\"begin\"");
        sleepUntil(end);
        System.out.println("\"end\"");
        end();
        return measured(measureNanos / 1e9, latencies.stream().flatMap(List::stream).toList(), shares);
    }

    private static void sleepUntil(long nanoTime) {
        for (long left = nanoTime - System.nanoTime(); left > 0; left = nanoTime - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    /** Clients that want one lock and keep it. */
    private void hold() {
        System.out.println("\"begin\"");
        for (int i = 0; i < clients; i++) {
            Client client = client(i);
            start(() -> {
                client.take("lock:hold");
                System.out.println("\"held\"");
                LockSupport.park();
            });
        }
    }

    /** One lock goes round among all clients. */
    private Map<String, Object> handOff() throws Exception {
        BlockingQueue<Thread> holders = new LinkedBlockingQueue<>();
        Semaphore comeBack = new Semaphore(0);
        AtomicLong releasedAt = new AtomicLong();
        AtomicLong heldAt = new AtomicLong();
        for (int i = 0; i < clients; i++) {
            Client client = client(i);
            start(() -> {
                while (!over) {
                    Release release = client.take("lock:hand-off");
                    heldAt.set(System.nanoTime());
                    holders.add(Thread.currentThread());
                    if (!over) {
                        LockSupport.park();
                    }
                    releasedAt.set(System.nanoTime());
                    release.run();
                    // Not before another one has it: this is no race.
                    comeBack.acquireUninterruptibly();
                }
            });
        }
        List<Long> latencies = new ArrayList<>();
        long begin = System.nanoTime() + warmUpNanos;
        long end = begin + measureNanos;
        boolean begun = false;
        Thread holder = holders.take();
        while (System.nanoTime() < end || latencies.isEmpty()) {
            long settle = settleNanos + ThreadLocalRandom.current().nextLong(settleNanos);
            sleepUntil(System.nanoTime() + settle);
            if (!begun && System.nanoTime() > begin) {
                begun = true;
                System.out.println("\"begin\"");
            }
            LockSupport.unpark(holder);
            holder = holders.take();
            comeBack.release();
            if (begun) {
                latencies.add(heldAt.get() - releasedAt.get());
            }
        }
        System.out.println("\"end\"");
        over = true;
        comeBack.release(clients);
        LockSupport.unpark(holder);
        end();
        return measured(measureNanos / 1e9, latencies, new long[] {latencies.size()});
    }
}
