package redisnativelock;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands between a client and its server: it cuts connections, and swallows answers. */
final class Proxy implements AutoCloseable {
  final int port;
  private final ServerSocket listener;
  private final int target;
  private final List<Socket> sockets = new CopyOnWriteArrayList<>();
  private final AtomicInteger swallowed = new AtomicInteger();
  private volatile String swallows;
  private volatile boolean cutsThere;

  Proxy(int target) throws IOException {
    this.target = target;
    listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    port = listener.getLocalPort();
    begin(this::accept);
  }

  private static void begin(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    try {
      while (true) {
        Socket client = listener.accept();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        client.setTcpNoDelay(true);
        server.setTcpNoDelay(true);
        sockets.addAll(List.of(client, server));
        begin(() -> carry(client, server, false));
        begin(() -> carry(server, client, true));
      }
    } catch (IOException end) {
      cut();
    }
  }

  private void carry(Socket from, Socket to, boolean isAnswer) {
    byte[] buffer = new byte[65536];
    try (from; to) {
      InputStream input = from.getInputStream();
      for (int length; (length = input.read(buffer)) > 0; ) {
        byte[] data = Arrays.copyOf(buffer, length);
        String word = swallows;
        if (isAnswer && word != null && new String(data, StandardCharsets.ISO_8859_1).contains(word)) {
          swallowed.incrementAndGet();
          if (cutsThere) {
            swallows = null;
            return;
          }
          continue;
        }
        to.getOutputStream().write(data);
      }
    } catch (IOException end) {
      // One of the two is gone, and so is the other.
    }
  }

  /** Swallows answers that contain this, or none. */
  void swallow(String word) {
    cutsThere = false;
    swallows = word;
  }

  /** Cuts a connection instead of its next answer that contains this. */
  void cutAt(String word) {
    cutsThere = true;
    swallows = word;
  }

  int swallowed() {
    return swallowed.get();
  }

  void cut() {
    for (Socket socket : sockets) {
      try {
        socket.close();
      } catch (IOException alreadyGone) {
        // That is what was wanted.
      }
    }
    sockets.clear();
  }

  @Override
  public void close() throws IOException {
    listener.close();
    cut();
  }
}
