package redisnativelock.lettuce;

import io.lettuce.core.*;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.*;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.*;
import io.lettuce.core.pubsub.*;
import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.*;
import java.util.function.Consumer;
import redisnativelock.NativeLockException;
import redisnativelock.spi.RedisAccess;

/**
 * Locks by Lettuce: one server, Sentinel (a URI that names it), or a cluster. It opens a connection for commands, and one
 * for each server where somebody waits.
 */
public final class LettuceAccess implements RedisAccess, AutoCloseable {
  private static final ByteArrayCodec CODEC = ByteArrayCodec.INSTANCE;

  /** For connections of our own. */
  private final RedisClient client;
  private final RedisURI uri;
  private final RedisClusterClient cluster;
  private CompletableFuture<? extends StatefulConnection<byte[], byte[]>> connected;
  private CompletableFuture<? extends StatefulConnection<byte[], byte[]>> successor;
  private boolean isClosed;

  private LettuceAccess(RedisClient client, RedisURI uri, RedisClusterClient cluster) {
    this.client = client;
    this.uri = uri;
    this.cluster = cluster;
    successor = connect();
    connected = successor;
  }

  /** One server, or Sentinel, as the URI says. */
  public static LettuceAccess of(RedisClient client, RedisURI uri) {
    return new LettuceAccess(client, uri, null);
  }

  /** A cluster, by a URI of its client's: Lettuce tells of its nodes without the TLS and the credentials of that. */
  public static LettuceAccess of(RedisClusterClient cluster, RedisURI uri) {
    RedisClient nodes = RedisClient.create(cluster.getResources());
    nodes.setOptions(cluster.getOptions());
    return new LettuceAccess(nodes, uri, cluster);
  }

  /** Closes the connection for commands. The client stays open. */
  @Override
  public synchronized void close() {
    isClosed = true;
    // To wait for it here could be for ever: the thread that closes it may be about to send.
    connected.thenAccept(StatefulConnection::closeAsync);
    successor.thenAccept(StatefulConnection::closeAsync);
    connected = CompletableFuture.failedFuture(new IllegalStateException("it is closed"));
    if (cluster != null) {
      client.shutdownAsync();
    }
  }

  @Override
  public NativeLockException meaning(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof RedisCommandExecutionException) {
        return NativeLockException.replied(cause.getMessage(), error);
      }
    }
    // What was to be sent over a connection that is closed is cancelled: for one command without an answer, all others.
    boolean isOfConnection = error instanceof RedisException || error instanceof IOException
        || error instanceof CancellationException;
    String code = isOfConnection ? NativeLockException.UNANSWERED : NativeLockException.FAILED;
    return new NativeLockException(code, error.getMessage(), error);
  }

  @Override
  public int slot(byte[] key) {
    return cluster == null ? -1 : SlotHash.getSlot(key);
  }

  /** A server that stands still takes a connection, and Lettuce would wait a minute for it to say hello. */
  private CompletableFuture<? extends StatefulConnection<byte[], byte[]>> connect() {
    var opening = cluster == null ? CompletableFuture.completedFuture(uri).thenCompose(to -> client.connectAsync(CODEC, to))
        : CompletableFuture.supplyAsync(cluster::getPartitions, THREADS).thenCompose(map -> cluster.connectAsync(CODEC));
    var bounded = opening.copy().orTimeout(5, TimeUnit.SECONDS);
    bounded.whenComplete((open, late) -> opening.thenAccept(late == null ? ours -> {} : StatefulConnection::closeAsync));
    return bounded;
  }

  private synchronized CompletableFuture<? extends StatefulConnection<byte[], byte[]>> connected() {
    if (connected.isCompletedExceptionally()) {
      suspect();
    }
    return connected;
  }

  /**
   * Replies come in the order of their commands: where one is missing, the next would be taken for it. That of a cluster
   * serves until there is another: the server that does not answer may be the one that Lettuce connects to.
   */
  @Override
  public synchronized void suspect() {
    if (!isClosed && successor.isDone()) {
      successor = connect();
      if (cluster == null || connected.isCompletedExceptionally()) {
        use();
      } else {
        successor.thenRun(this::use);
      }
    }
  }

  private synchronized void use() {
    connected.thenAccept(StatefulConnection::closeAsync);
    connected = isClosed ? connected : successor;
  }

  private static CompletableFuture<Object> send(StatefulConnection<byte[], byte[]> to, byte[][] command) {
    CommandArgs<byte[], byte[]> args = new CommandArgs<>(CODEC).addKey(command[1]);
    Arrays.stream(command).skip(2).forEach(args::add);
    var sent = new AsyncCommand<>(new Command<>(() -> command[0], new NestedMultiOutput<>(CODEC), args)) {
      private int times;

      @Override
      public void encode(ByteBuf bytes) {
        times++;
        super.encode(bytes);
      }
    };
    to.dispatch(sent);
    return sent.handle((replies, error) ->
        RedisAccess.reply(new String(command[0]), sent.times, error == null ? replies.get(0) : null, error));
  }

  @Override
  public CompletableFuture<Object> send(byte[]... command) {
    return connected().thenCompose(open -> send(open, command));
  }

  private RedisURI uri(byte[] key) {
    if (cluster == null) {
      return uri;
    }
    var node = cluster.getPartitions().getPartitionBySlot(slot(key));
    if (node == null) {
      throw new RedisException("no node of the cluster has slot " + slot(key));
    }
    return RedisURI.builder(uri).withHost(node.getUri().getHost()).withPort(node.getUri().getPort()).build();
  }

  @Override
  public CompletableFuture<String> node(byte[] key) {
    return connected().thenApply(open -> uri(key).toString());
  }

  @Override
  public CompletableFuture<Link> open(byte[] key, Consumer<byte[]> messages, Consumer<Throwable> ended) {
    return connected().thenCompose(open -> client.connectPubSubAsync(CODEC, uri(key)))
        .thenApply(own -> new OwnConnection(own, messages, ended));
  }

  /** A connection for messages. Lettuce would mend it by itself; here it ends once it is broken. */
  private final class OwnConnection extends RedisPubSubAdapter<byte[], byte[]> implements Link, RedisConnectionStateListener {
    private final StatefulRedisPubSubConnection<byte[], byte[]> own;
    private final Consumer<byte[]> messages;
    private final Consumer<Throwable> ended;

    OwnConnection(StatefulRedisPubSubConnection<byte[], byte[]> own, Consumer<byte[]> messages, Consumer<Throwable> ended) {
      this.own = own;
      this.messages = messages;
      this.ended = ended;
      own.addListener((io.lettuce.core.pubsub.RedisPubSubListener<byte[], byte[]>) this);
      own.addListener((RedisConnectionStateListener) this);
      // A BLOCK has a time of its own.
      own.setTimeout(Duration.ZERO);
    }

    @Override
    public CompletableFuture<?> subscribe(byte[] channel) {
      var answer = cluster == null ? own.async().subscribe(channel) : own.async().ssubscribe(channel);
      return answer.toCompletableFuture().whenComplete((done, error) -> {
        if (error != null && cluster != null) {
          // The slot may have moved.
          cluster.refreshPartitionsAsync();
        }
      });
    }

    @Override
    public CompletableFuture<Object> send(byte[]... command) {
      return LettuceAccess.send(own, command);
    }

    @Override
    public void close() {
      own.closeAsync();
    }

    @Override
    public void message(byte[] channel, byte[] data) {
      messages.accept(data);
    }

    @Override
    public void smessage(byte[] channel, byte[] data) {
      messages.accept(data);
    }

    @Override
    public void sunsubscribed(byte[] channel, long count) {
      ended.accept(new IOException("the server has ended the subscription"));
    }

    @Override
    public void onRedisDisconnected(RedisChannelHandler<?, ?> gone) {
      ended.accept(new IOException("the connection is gone"));
    }
  }
}
