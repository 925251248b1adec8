import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.JedisSentineled;
import redisnativelock.*;
import redisnativelock.jedis.JedisAccess;
import redisnativelock.lettuce.LettuceAccess;
import redisnativelock.spi.RedisAccess;

/** Does with this package what the conformance suite says, a thread for each call. */
public final class Driver {
  private static final Gson JSON = new Gson();
  private static final Map<String, String> NAMES = Map.of(NativeLockException.LOST, "LockLost",
      NativeLockException.DEADLOCK, "Deadlock", NativeLockException.NOT_SAFE, "NotSafe",
      NativeLockException.SUPERSEDED, "Superseded", NativeLockException.NO_MODULE, "NoModule",
      NativeLockException.UNANSWERED, "Unavailable", "NOPERM", "NoPermission");

  /** The error of the work of a {@code run}. */
  private static final class WorkFailed extends Exception {
    private static final long serialVersionUID = 1;
  }

  private static final class Busy extends Exception {
    private static final long serialVersionUID = 1;
  }

  private record Client(Locks locks, List<AutoCloseable> opened) {}

  /** An {@code acquire} or {@code run}, and what others do with it. */
  private static final class Wait {
    final CompletableFuture<Hold> hold = new CompletableFuture<>();
    final CompletableFuture<String> finish = new CompletableFuture<>();
    volatile Thread thread;
    volatile boolean hasEnded;
  }

  private final boolean isJedis;
  private final Map<String, Client> clients = new ConcurrentHashMap<>();
  private final Map<Long, Wait> waits = new ConcurrentHashMap<>();

  private Driver(boolean isJedis) {
    this.isJedis = isJedis;
  }

  public static void main(String[] arguments) throws IOException {
    Driver driver = new Driver(arguments[0].equals("jedis"));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      driver.begin(JsonParser.parseString(line).getAsJsonObject());
    }
    Runtime.getRuntime().halt(0);
  }

  private static void say(JsonObject call, Map<String, ?> what) {
    double at = System.nanoTime() / 1e6;
    JsonObject line = JSON.toJsonTree(what).getAsJsonObject();
    line.add("id", call.get("id"));
    line.addProperty("at", at);
    System.out.print(line + "\n");
    System.out.flush();
  }

  private void begin(JsonObject call) {
    Wait wait = new Wait();
    if (Set.of("acquire", "run").contains(call.get("call").getAsString())) {
      waits.put(call.get("id").getAsLong(), wait);
    }
    Thread thread = new Thread(() -> {
      try {
        Object result = run(call, wait);
        if (result != null) {
          say(call, Map.of("ok", result));
        }
      } catch (Exception error) {
        say(call, Map.of("error", name(error), "text", error.toString()));
      }
    });
    thread.setDaemon(true);
    wait.thread = thread;
    thread.start();
  }

  private static String name(Throwable error) {
    if (error instanceof NativeLockException known) {
      return NAMES.getOrDefault(known.code(), "Other");
    } else if (error instanceof Busy) {
      return "LockBusy";
    } else if (error instanceof InterruptedException) {
      return "Cancelled";
    } else if (error instanceof WorkFailed) {
      return "WorkFailed";
    }
    return error instanceof UnsupportedOperationException ? "Unsupported" : "Other";
  }

  /** Returns null where the answer comes later, or never. */
  private Object run(JsonObject call, Wait wait) throws Exception {
    Wait of = call.has("of") ? waits.get(call.get("of").getAsLong()) : wait;
    switch (call.get("call").getAsString()) {
      case "connect":
        clients.put(call.get("client").getAsString(), connect(call));
        return Map.of();
      case "acquire":
        return Map.of("token", acquire(call, wait).token());
      case "run":
        return Map.of("value", runWork(call, wait));
      case "cancel":
        synchronized (of) {
          if (!of.hasEnded) {
            of.thread.interrupt();
          }
        }
        return Map.of();
      case "release":
        return Map.of("released", of.hold.join().release());
      case "renew":
        if (call.has("lease_ms")) {
          of.hold.join().renew(duration(call, "lease_ms"));
        } else {
          of.hold.join().renew();
        }
        return Map.of();
      case "valid_for":
        return Map.of("ms", of.hold.join().validFor().toNanos() / 1e6);
      case "lost":
        of.hold.join().lost().thenRun(() -> say(call, Map.of("ok", Map.of())));
        return null;
      case "finish":
        of.finish.complete(call.get("with").getAsString());
        return Map.of();
      case "count":
        return count(call);
      case "clock":
        return Map.of("wall_ms", System.currentTimeMillis());
      case "close":
        Client client = clients.remove(call.get("client").getAsString());
        client.locks().close();
        for (AutoCloseable opened : client.opened()) {
          opened.close();
        }
        return Map.of();
      default:
        throw new UnsupportedOperationException(call.get("call").getAsString());
    }
  }

  private static Duration duration(JsonObject call, String field) {
    return Duration.ofNanos((long) (call.get(field).getAsDouble() * 1e6));
  }

  private NativeLock lock(JsonObject call) {
    Locks locks = clients.get(call.get("client").getAsString()).locks();
    NativeLock lock = call.has("key_hex") ? locks.lock(HexFormat.of().parseHex(call.get("key_hex").getAsString()))
        : locks.lock(call.get("key").getAsString());
    lock = call.has("shared") && call.get("shared").getAsBoolean() ? lock.shared() : lock;
    lock = call.has("limit") ? lock.limit(call.get("limit").getAsInt()) : lock;
    lock = call.has("lease_ms") ? lock.lease(duration(call, "lease_ms")) : lock;
    return call.has("at_least_ms") ? lock.atLeast(duration(call, "at_least_ms")) : lock;
  }

  private static boolean isRenewed(JsonObject call) {
    return !call.has("renew") || call.get("renew").getAsBoolean();
  }

  private Hold acquire(JsonObject call, Wait wait) throws Exception {
    NativeLock lock = lock(call);
    Duration patience = call.has("wait_ms") ? duration(call, "wait_ms") : Duration.ofNanos(Long.MAX_VALUE);
    try {
      Hold hold = (isRenewed(call) ? lock.acquire(patience)
          : lock.acquire(patience, call.has("lease_ms") ? duration(call, "lease_ms") : Duration.ofSeconds(30)))
              .orElseThrow(Busy::new);
      wait.hold.complete(hold);
      return hold;
    } finally {
      synchronized (wait) {
        wait.hasEnded = true;
      }
    }
  }

  private int runWork(JsonObject call, Wait wait) throws Exception {
    if (!isRenewed(call)) {
      throw new UnsupportedOperationException("a scoped form without renewal");
    }
    int[] value = new int[1];
    NativeLock.Work<Integer, Exception> work = hold -> {
      wait.hold.complete(hold);
      say(call, Map.of("event", "began", "token", hold.token()));
      CompletableFuture.anyOf(wait.finish, hold.lost()).get();
      if ("error".equals(wait.finish.getNow(""))) {
        throw new WorkFailed();
      }
      value[0] = 42;
      return 42;
    };
    try {
      if (!call.has("wait_ms")) {
        return lock(call).call(work);
      } else if (!lock(call).tryCall(duration(call, "wait_ms"), work)) {
        throw new Busy();
      }
      return value[0];
    } finally {
      synchronized (wait) {
        wait.hasEnded = true;
      }
    }
  }

  private Object count(JsonObject call) throws Exception {
    AtomicLong done = new AtomicLong();
    AtomicLong backwards = new AtomicLong();
    Path file = Path.of(call.get("file").getAsString());
    List<CompletableFuture<Void>> tasks = new ArrayList<>();
    for (int task = 0; task < call.get("tasks").getAsInt(); task++) {
      CompletableFuture<Void> ended = new CompletableFuture<>();
      tasks.add(ended);
      new Thread(() -> {
        try {
          for (int left = call.get("times").getAsInt(); left > 0; left--) {
            Hold hold = lock(call).acquire();
            String[] read = Files.readString(file).split(" ");
            Thread.yield();
            Files.writeString(file, Long.parseLong(read[0]) + 1 + " " + hold.token());
            if (Long.parseLong(read[1].trim()) >= hold.token()) {
              backwards.incrementAndGet();
            }
            done.incrementAndGet();
            hold.release();
          }
          ended.complete(null);
        } catch (Exception error) {
          ended.completeExceptionally(error);
        }
      }).start();
    }
    CompletableFuture.allOf(tasks.toArray(new CompletableFuture<?>[0])).get();
    return Map.of("done", done.get(), "backwards", backwards.get());
  }

  private static String text(JsonObject call, String field) {
    return call.has(field) ? call.get(field).getAsString() : null;
  }

  private Client connect(JsonObject call) throws Exception {
    List<URI> urls = new ArrayList<>();
    for (JsonElement url : call.getAsJsonArray("urls")) {
      urls.add(URI.create(url.getAsString()));
    }
    List<AutoCloseable> opened = new ArrayList<>();
    RedisAccess access = isJedis ? jedis(call, urls, opened) : lettuce(call, urls, opened);
    Duration lease = call.has("lease_ms") ? duration(call, "lease_ms") : Duration.ofSeconds(30);
    return new Client(Locks.create(access, lease, call.has("prefix") ? text(call, "prefix") : ""), opened);
  }

  private static RedisAccess jedis(JsonObject call, List<URI> urls, List<AutoCloseable> opened) throws Exception {
    boolean isTls = urls.get(0).getScheme().equals("rediss");
    DefaultJedisClientConfig.Builder builder =
        DefaultJedisClientConfig.builder().user(text(call, "user")).password(text(call, "password")).ssl(isTls);
    if (call.has("ca_file")) {
      SSLParameters checks = new SSLParameters();
      checks.setEndpointIdentificationAlgorithm("HTTPS");
      builder.sslSocketFactory(trusting(text(call, "ca_file")).getSocketFactory()).sslParameters(checks);
    }
    DefaultJedisClientConfig config = builder.build();
    Set<HostAndPort> nodes =
        urls.stream().map(url -> new HostAndPort(url.getHost(), url.getPort())).collect(Collectors.toSet());
    switch (text(call, "kind")) {
      case "one":
        HostAndPort address = nodes.iterator().next();
        JedisPooled one = new JedisPooled(address, config);
        opened.add(one);
        return JedisAccess.of(one, address, config);
      case "sentinel":
        DefaultJedisClientConfig plain = DefaultJedisClientConfig.builder().build();
        JedisSentineled watched = new JedisSentineled(text(call, "service"), config, nodes, plain);
        opened.add(watched);
        return JedisAccess.of(watched, watched::getCurrentMaster, config);
      default:
        JedisCluster cluster = new JedisCluster(nodes, config);
        opened.add(cluster);
        return JedisAccess.cluster(cluster, config);
    }
  }

  private static SSLContext trusting(String file) throws Exception {
    KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
    trusted.load(null, null);
    try (InputStream pem = new FileInputStream(file)) {
      trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
    }
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(trusted);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    return context;
  }

  private static RedisAccess lettuce(JsonObject call, List<URI> urls, List<AutoCloseable> opened) {
    RedisURI.Builder uri = RedisURI.builder();
    if (text(call, "kind").equals("sentinel")) {
      uri.withSentinelMasterId(text(call, "service"));
      urls.forEach(url -> uri.withSentinel(url.getHost(), url.getPort()));
    } else {
      uri.withHost(urls.get(0).getHost()).withPort(urls.get(0).getPort());
      uri.withSsl(urls.get(0).getScheme().equals("rediss"));
    }
    if (call.has("password")) {
      uri.withAuthentication(call.has("user") ? text(call, "user") : "default", text(call, "password"));
    }
    SslOptions tls = call.has("ca_file")
        ? SslOptions.builder().trustManager(new java.io.File(text(call, "ca_file"))).build() : SslOptions.create();
    AbstractRedisClient client;
    LettuceAccess access;
    if (text(call, "kind").equals("cluster")) {
      RedisClusterClient cluster = RedisClusterClient.create(uri.build());
      cluster.setOptions(ClusterClientOptions.builder().sslOptions(tls).build());
      client = cluster;
      access = LettuceAccess.of(cluster, uri.build());
    } else {
      RedisClient one = RedisClient.create();
      one.setOptions(ClientOptions.builder().sslOptions(tls).build());
      client = one;
      access = LettuceAccess.of(one, uri.build());
    }
    opened.add(access);
    opened.add(client::shutdown);
    return access;
  }
}
