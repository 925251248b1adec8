"""Takes locks with redis-py as the lines of standard input say:
what kind port clients locks sectionMicros warmUpMillis measureMillis leaseMillis settleMillis
"""

import json
import random
import sys
import threading
import time

import redis


def say(what):
    # One write a line: threads say "held".
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Client:
    def __init__(self, port, lease_seconds):
        self.lease_seconds = lease_seconds
        self.connection = redis.Redis(port=port)
        self.connection.ping()

    def take(self, n):
        lock = self.connection.lock(f"lock:{n}", timeout=self.lease_seconds)
        lock.acquire()
        return lock


class Question:
    def __init__(self, line):
        words = line.split()
        self.what = words[0]
        port, clients, self.locks = map(int, words[2:5])
        millis = [int(word) / 1000 for word in words[6:10]]
        self.warm_up, self.measure, lease, self.settle = millis
        self.clients = [Client(port, lease) for _ in range(clients)]

    def answer(self):
        if self.what == "hold":
            self.hold()
            return
        latencies, shares = self.hand_off() if self.what == "hand-off" else self.loop()
        done = {"seconds": self.measure, "latenciesNs": latencies, "shares": shares}
        say({"done": done})

    def together(self, work):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.clients))]
        for thread in threads:
            thread.start()
        return threads

    def loop(self):
        begin = time.monotonic() + self.warm_up
        end = begin + self.measure
        latencies, shares = [], [0] * len(self.clients)

        def work(n):
            while time.monotonic() < end:
                own = self.what == "uncontended"
                wanted = time.monotonic_ns()
                lock = self.clients[n].take(n % self.locks if own else random.randrange(self.locks))
                held = time.monotonic()
                lock.release()
                if begin < held <= end:
                    shares[n] += 1
                    if own:
                        latencies.append(time.monotonic_ns() - wanted)

        threads = self.together(work)
        time.sleep(max(0, begin - time.monotonic()))
        say("begin")
        time.sleep(max(0, end - time.monotonic()))
        say("end")
        for thread in threads:
            thread.join()
        return latencies, shares

    def hand_off(self):
        """Two clients pass one lock to each other."""
        begin = time.monotonic() + self.warm_up
        end = begin + self.measure
        come_back = [threading.Semaphore(1), threading.Semaphore(0)]
        latencies = []
        released_ns, over = 0, False

        def work(n):
            nonlocal released_ns, over
            while True:
                come_back[n].acquire()
                lock = self.clients[n].take(0)
                held_ns = time.monotonic_ns()
                if released_ns > begin * 1e9:
                    latencies.append(held_ns - released_ns)
                last = over
                if not last:
                    over = held_ns > end * 1e9 and len(latencies) > 0
                    ends = over
                    # The other one waits by the time when this one gives it back.
                    come_back[1 - n].release()
                    time.sleep(self.settle * random.uniform(1, 2))
                    released_ns = time.monotonic_ns()
                lock.release()
                if last or ends:
                    return

        say("begin")
        for thread in self.together(work):
            thread.join()
        say("end")
        return latencies, [len(latencies)]

    def hold(self):
        """Clients that want one lock and keep it."""
        say("begin")

        def work(n):
            self.clients[n].take(0)
            say("held")

        self.together(work)


say({"ready": f"redis-py {redis.__version__}"})
for line in sys.stdin:
    Question(line).answer()
