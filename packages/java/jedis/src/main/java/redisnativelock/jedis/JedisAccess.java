package redisnativelock.jedis;

import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.*;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.*;
import redis.clients.jedis.util.JedisClusterCRC16;
import redisnativelock.NativeLockException;
import redisnativelock.spi.RedisAccess;

/**
 * Locks by Jedis: a pooled client, one behind Sentinel, or a cluster. Commands go through the client that it is given, in
 * threads beside, for a thread that reads from a socket can't be interrupted.
 */
public final class JedisAccess implements RedisAccess {
  private final UnifiedJedis jedis;
  private final Supplier<HostAndPort> primary;
  private final JedisClientConfig config;

  private JedisAccess(UnifiedJedis jedis, Supplier<HostAndPort> primary, JedisClientConfig config) {
    this.jedis = jedis;
    this.primary = primary;
    this.config = config;
  }

  /** One server. Its address and the config are for connections of our own: one for all who wait. */
  public static JedisAccess of(UnifiedJedis jedis, HostAndPort address, JedisClientConfig config) {
    return new JedisAccess(jedis, () -> address, config);
  }

  /** Behind Sentinel: {@code of(sentineled, sentineled::getCurrentMaster, config)}. */
  public static JedisAccess of(UnifiedJedis jedis, Supplier<HostAndPort> primary, JedisClientConfig config) {
    return new JedisAccess(jedis, primary, config);
  }

  /** A cluster. */
  public static JedisAccess cluster(UnifiedJedis jedis, JedisClientConfig config) {
    return new JedisAccess(jedis, null, config);
  }

  @Override
  public NativeLockException meaning(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof JedisDataException || cause instanceof JedisClusterException) {
        return NativeLockException.replied(cause.getMessage(), error);
      } else if (cause instanceof IllegalStateException) {
        return new NativeLockException(NativeLockException.FAILED, "the client is closed", error);
      }
    }
    String code = error instanceof JedisException ? NativeLockException.UNANSWERED : NativeLockException.FAILED;
    return new NativeLockException(code, error.getMessage(), error);
  }

  @Override
  public int slot(byte[] key) {
    return primary == null ? JedisClusterCRC16.getSlot(key) : -1;
  }

  private static byte[][] rest(byte[][] command) {
    return Arrays.copyOfRange(command, 1, command.length);
  }

  @Override
  public CompletableFuture<Object> send(byte[]... command) {
    int[] times = {0};
    return CompletableFuture.supplyAsync(() -> jedis.sendCommand(command[1], () -> {
      times[0]++; // Jedis asks for the name each time that it sends the command.
      return command[0];
    }, rest(command)), THREADS).handle((reply, error) -> RedisAccess.reply(new String(command[0]), times[0], reply, error));
  }

  private HostAndPort address(byte[] key) {
    if (primary != null) {
      return primary.get();
    }
    long slot = slot(key);
    for (Object each : (List<?>) jedis.sendCommand(key, Protocol.Command.CLUSTER, "SLOTS".getBytes())) {
      List<?> range = (List<?>) each;
      if ((Long) range.get(0) <= slot && slot <= (Long) range.get(1)) {
        List<?> node = (List<?>) range.get(2);
        return new HostAndPort(new String((byte[]) node.get(0)), ((Long) node.get(1)).intValue());
      }
    }
    throw new JedisException("no node of the cluster has slot " + slot);
  }

  @Override
  public CompletableFuture<HostAndPort> node(byte[] key) {
    return CompletableFuture.supplyAsync(() -> address(key), THREADS);
  }

  @Override
  public CompletableFuture<Link> open(byte[] key, Consumer<byte[]> messages, Consumer<Throwable> ended) {
    return CompletableFuture.supplyAsync(() -> {
      OwnConnection own = new OwnConnection(address(key));
      THREADS.execute(() -> ended.accept(own.read(messages)));
      return own;
    }, THREADS);
  }

  /** A connection that one thread reads from, while others write to it. */
  private final class OwnConnection extends Connection implements Link {
    private final ReentrantLock writing = new ReentrantLock();
    private final Queue<CompletableFuture<Object>> unanswered = new ConcurrentLinkedQueue<>();

    OwnConnection(HostAndPort address) {
      super(address, config);
      setSoTimeout(0);
    }

    @Override
    public CompletableFuture<?> subscribe(byte[] channel) {
      return send((primary == null ? Protocol.Command.SSUBSCRIBE : Protocol.Command.SUBSCRIBE).getRaw(), channel);
    }

    @Override
    public CompletableFuture<Object> send(byte[]... command) {
      CompletableFuture<Object> answer = new CompletableFuture<>();
      writing.lock();
      try {
        if (!isConnected()) {
          throw new JedisConnectionException("it would connect again, and nobody would read from it");
        }
        unanswered.add(answer);
        sendCommand(() -> command[0], rest(command));
        flush();
      } catch (JedisException error) {
        answer.completeExceptionally(error);
      } finally {
        writing.unlock();
      }
      return answer;
    }

    /** Reads until the connection has ended, and returns why. */
    Throwable read(Consumer<byte[]> messages) {
      while (true) {
        try {
          Object reply = getUnflushedObject();
          String kind = reply instanceof List<?> parts && parts.get(0) instanceof byte[] word ? new String(word) : "";
          if (kind.endsWith("message")) {
            messages.accept((byte[]) ((List<?>) reply).get(2));
          } else if (kind.endsWith("unsubscribe")) {
            throw new JedisConnectionException("the server has ended the subscription");
          } else {
            unanswered.remove().complete(reply);
          }
        } catch (JedisDataException refused) {
          unanswered.remove().completeExceptionally(refused);
        } catch (RuntimeException end) {
          unanswered.forEach(answer -> answer.completeExceptionally(end));
          return end;
        }
      }
    }
  }
}
