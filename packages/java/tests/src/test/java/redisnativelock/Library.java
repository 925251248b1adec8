package redisnativelock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.time.Duration;
import java.util.*;
import redis.clients.jedis.*;
import redisnativelock.jedis.JedisAccess;
import redisnativelock.lettuce.LettuceAccess;
import redisnativelock.spi.RedisAccess;

/** The client libraries. What is opened here is closed by {@link #closeAll}. */
enum Library {
  JEDIS,
  LETTUCE;

  static final JedisClientConfig CONFIG = DefaultJedisClientConfig.builder().user("default").password("any").build();
  private static final Deque<AutoCloseable> OPENED = new ArrayDeque<>();

  private static <T extends AutoCloseable> T opened(T resource) {
    OPENED.push(resource);
    return resource;
  }

  static void closeAll() {
    while (!OPENED.isEmpty()) {
      try {
        OPENED.pop().close();
      } catch (Exception alreadyGone) {
        // Its server may be gone.
      }
    }
  }

  static Locks locks(RedisAccess access, Duration lease) {
    return opened(Locks.create(access, lease, ""));
  }

  Locks locks(int port) {
    return locks(access(port), Duration.ofSeconds(30));
  }

  Locks locks(int port, Duration lease) {
    return locks(access(port), lease);
  }

  RedisAccess access(int port) {
    if (this == JEDIS) {
      HostAndPort address = new HostAndPort("127.0.0.1", port);
      return JedisAccess.of(opened(new JedisPooled(address, CONFIG)), address, CONFIG);
    }
    RedisClient client = RedisClient.create();
    OPENED.push(client::shutdown);
    return opened(LettuceAccess.of(client, RedisURI.create("127.0.0.1", port)));
  }

  RedisAccess cluster(int port, JedisClientConfig config) {
    if (this == JEDIS) {
      return JedisAccess.cluster(opened(new JedisCluster(Set.of(new HostAndPort("127.0.0.1", port)), config)), config);
    }
    RedisURI uri = RedisURI.create("redis://" + config.getUser() + ":" + config.getPassword() + "@127.0.0.1:" + port);
    RedisClusterClient client = RedisClusterClient.create(uri);
    OPENED.push(client::shutdown);
    return opened(LettuceAccess.of(client, uri));
  }
}
