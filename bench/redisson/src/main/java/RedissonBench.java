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
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.TransportMode;

/**
 * Puts Redisson to a workload for each line of standard input:
 * {@code what kind port clients locks sectionMicros warmUpMillis measureMillis}.
 * Every client is a thread. Of the kind {@code lock} the threads
 * share one RedissonClient, as those of one process do: a release wakes one of
 * them, not all. Of the kind {@code apart} each has its own, as if it were a
 * process of its own.
 */
public final class RedissonBench {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long LEASE_SECONDS = 30;
    private static final int MOST_CONNECTIONS = 64;
    /** More only compete with each other on a machine that the server shares. */
    private static final int NETTY_THREADS = Integer.getInteger("nettyThreads", 4);
    private static final EventLoopGroup EVENT_LOOPS =
        new MultiThreadIoEventLoopGroup(NETTY_THREADS, NioIoHandler.newFactory());
    private static final ExecutorService EXECUTOR = Executors.newFixedThreadPool(4);
    /** What the JVM has to learn when it sees a kind of work for the first time. */
    private static final long FIRST_WARM_UP_NANOS = TimeUnit.SECONDS.toNanos(4);
    private static final Set<String> KNOWN = new HashSet<>();
    /** How long all have to come back to their wait after a hand-off. */
    private static final long SETTLE_NANOS = 5_000_000;

    private final List<RedissonClient> redissons = new ArrayList<>();
    private final int clients;
    private final int locks;
    private final long sectionNanos;
    private final long warmUpNanos;
    private final long measureNanos;
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean over;

    private RedissonBench(String[] words) {
        boolean apart = words[1].equals("apart");
        int port = Integer.parseInt(words[2]);
        clients = Integer.parseInt(words[3]);
        locks = Integer.parseInt(words[4]);
        sectionNanos = TimeUnit.MICROSECONDS.toNanos(Long.parseLong(words[5]));
        warmUpNanos = KNOWN.add(words[0] + words[1])
            ? FIRST_WARM_UP_NANOS
            : TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[6]));
        measureNanos = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[7]));
        for (int i = 0; i < (apart ? clients : 1); i++) {
            redissons.add(connect(port, apart ? 1 : Math.min(clients, MOST_CONNECTIONS)));
        }
    }

    private static RedissonClient connect(int port, int connections) {
        Config config = new Config();
        config.setEventLoopGroup(EVENT_LOOPS)
            .setTransportMode(TransportMode.NIO)
            .setExecutor(EXECUTOR)
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

    private RLock lock(int client, String name) {
        RedissonClient redisson = redissons.get(client % redissons.size());
        return redisson.getLock(name);
    }

    public static void main(String[] args) throws IOException {
        say("ready", settings());
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split(" ");
            try {
                // Said when all has been shut down: that is not to be felt by who comes next.
                say("done", new RedissonBench(words).run(words[0]));
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
                case "uncontended" -> loop(true);
                case "contended" -> loop(false);
                case "hand-off" -> handOff();
                default -> throw new IllegalArgumentException(what);
            };
        } finally {
            for (RedissonClient redisson : redissons) {
                redisson.shutdown(0, 2, TimeUnit.SECONDS);
            }
        }
    }

    private void start(Runnable client) {
        Thread thread = new Thread(client);
        threads.add(thread);
        thread.start();
    }

    private void end() throws InterruptedException {
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static Map<String, Object> measured(double seconds, List<Long> latencies, long[] shares) {
        return Map.of("seconds", seconds, "latenciesNs", latencies, "shares", shares);
    }

    /** Every client takes and gives back one of the locks, over and over. */
    private Map<String, Object> loop(boolean uncontended) throws Exception {
        long begin = System.nanoTime() + warmUpNanos;
        long end = begin + measureNanos;
        long[] shares = new long[clients];
        List<List<Long>> latencies = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            int n = i;
            List<Long> mine = new ArrayList<>();
            latencies.add(mine);
            RLock lock = lock(n, "lock:" + n % locks);
            start(() -> {
                while (!over) {
                    long wanted = System.nanoTime();
                    lock.lock(LEASE_SECONDS, TimeUnit.SECONDS);
                    long held = System.nanoTime();
                    if (sectionNanos > 0) {
                        LockSupport.parkNanos(sectionNanos);
                    }
                    lock.unlock();
                    if (held > begin && held <= end) {
                        shares[n]++;
                        mine.add((uncontended ? System.nanoTime() : held) - wanted);
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

    /** One lock goes round among all clients. */
    private Map<String, Object> handOff() throws Exception {
        BlockingQueue<Thread> holders = new LinkedBlockingQueue<>();
        Semaphore comeBack = new Semaphore(0);
        AtomicLong releasedAt = new AtomicLong();
        AtomicLong heldAt = new AtomicLong();
        for (int i = 0; i < clients; i++) {
            RLock lock = lock(i, "lock:hand-off");
            start(() -> {
                while (!over) {
                    lock.lock(LEASE_SECONDS, TimeUnit.SECONDS);
                    heldAt.set(System.nanoTime());
                    holders.add(Thread.currentThread());
                    if (!over) {
                        LockSupport.park();
                    }
                    releasedAt.set(System.nanoTime());
                    lock.unlock();
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
            sleepUntil(System.nanoTime() + SETTLE_NANOS);
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
