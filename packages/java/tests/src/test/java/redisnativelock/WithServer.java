package redisnativelock;

import org.junit.jupiter.api.AfterEach;

/** Each test has a server of its own. */
class WithServer {
  final Server server = new Server();

  @AfterEach
  void end() {
    Library.closeAll();
    server.close();
  }
}
