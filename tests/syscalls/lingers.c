// options: --cores 1
// nucleus: no (the host's TCP)
// close(2) of a connection that lingers (SO_LINGER): it waits until all has arrived, for so long at most, and others run meanwhile.
#include "case.h"
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static volatile int over;
static double longest;

// Looks for messages from itself all the time: how long it could not do that at worst.
static void *looks(void *unused) {
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    bind(s, (void *)&a, sizeof a);
    getsockname(s, (void *)&a, &len);
    char c;
    for (double last = now(); !over;) {
        sendto(s, "x", 1, 0, (void *)&a, sizeof a);
        recv(s, &c, 1, 0);
        double t = now();
        if (t - last > longest) longest = t - last;
        last = t;
    }
    close(s);
    return unused;
}

static int listener, peer;

// A connection with much that its peer does not read.
static int full(int seconds, int accepted) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    getsockname(listener, (void *)&a, &len);
    int c = socket(AF_INET, SOCK_STREAM, 0);
    connect(c, (void *)&a, sizeof a);
    int s = accept(listener, NULL, NULL);
    int mine = accepted ? s : c;
    peer = accepted ? c : s;
    struct linger l = {1, seconds};
    setsockopt(mine, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    static char bytes[65536];
    while (send(mine, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    return mine;
}

static void *reads(void *unused) {
    static char bytes[65536];
    usleep(300000);
    while (read(peer, bytes, sizeof bytes) > 0) {}
    return unused;
}

static void *breaks(void *unused) {
    usleep(300000);
    close(peer);
    return unused;
}

static void *sends(void *unused) {
    usleep(300000);
    send(peer, "x", 1, MSG_NOSIGNAL);
    return unused;
}

// Its close ends by what the other end does after 0.3 s.
static void ended_by(void *(*other)(void *), int s) {
    pthread_t t;
    pthread_create(&t, NULL, other, NULL);
    double begun = now();
    V(close(s));
    double took = now() - begun;
    P(took >= 0.25 && took < 10);
    pthread_join(t, NULL);
}

static void nothing(int n) { (void)n; }

int main(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&a, sizeof a);
    listen(listener, 5);
    pthread_t t;
    pthread_create(&t, NULL, looks, NULL);

    SECTION("to the end of its time");
    for (int accepted = 0; accepted < 2; accepted++) {
        int s = full(1, accepted);
        double begun = now();
        V(close(s));
        double took = now() - begun;
        P(took >= 0.99 && took < 3);
        close(peer);
    }

    SECTION("until it has arrived");
    int s = full(20, 0);
    ended_by(reads, s);
    close(peer);

    SECTION("until the other end breaks it");
    s = full(20, 1);
    // Something that is never read.
    send(s, "x", 1, MSG_DONTWAIT);
    ended_by(breaks, s);

    SECTION("the other end goes on sending");
    s = full(20, 0);
    ended_by(sends, s);
    close(peer);

    SECTION("of a listener that has stopped to");
    struct linger l = {1, 20};
    setsockopt(listener, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    socklen_t len = sizeof a;
    getsockname(listener, (void *)&a, &len);
    int c = socket(AF_INET, SOCK_STREAM, 0);
    V(connect(c, (void *)&a, sizeof a));
    l.l_onoff = 0;
    setsockopt(listener, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    s = accept(listener, NULL, NULL);
    len = sizeof l;
    V(getsockopt(s, SOL_SOCKET, SO_LINGER, &l, &len));
    P(l.l_onoff);
    P(l.l_linger);
    close(c);
    close(s);

    SECTION("nothing on its way");
    s = full(20, 0);
    static char bytes[65536];
    int left;
    while (ioctl(s, TIOCOUTQ, &left) == 0 && left > 0) {
        if (recv(peer, bytes, sizeof bytes, MSG_DONTWAIT) < 0) usleep(1000);
    }
    double begun = now();
    V(close(s));
    P(now() - begun < 5);
    close(peer);

    SECTION("a signal ends it");
    struct sigaction act = {.sa_handler = nothing};
    sigaction(SIGALRM, &act, NULL);
    s = full(20, 0);
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGALRM);
    struct itimerval in = {.it_value = {0, 300000}};
    setitimer(ITIMER_REAL, &in, NULL);
    begun = now();
    V(close(s));
    double took = now() - begun;
    P(took < 15);
    close(peer);

    over = 1;
    pthread_join(t, NULL);
    P(longest < 0.5);
    return 0;
}
