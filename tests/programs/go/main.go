// A Go program that uses what Go's runtime and standard library ask of a
// system: goroutines on more threads than cores, timers, an HTTP server and
// its client, signals, child processes, profiling by SIGPROF, preemption.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// goroutines passes a token around a ring of a thousand.
func goroutines() {
	first := make(chan int)
	in := first
	for i := 0; i < 1000; i++ {
		out := make(chan int)
		go func(in, out chan int) {
			for v := range in {
				out <- v + 1
			}
			close(out)
		}(in, out)
		in = out
	}
	go func() {
		for i := 0; i < 20; i++ {
			first <- i
		}
		close(first)
	}()
	sum := 0
	for v := range in {
		sum += v
	}
	fmt.Println("ring:", sum)

	var n int64
	var wait sync.WaitGroup
	for i := 0; i < 200; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for j := 0; j < 1000; j++ {
				atomic.AddInt64(&n, 1)
				if j%100 == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	wait.Wait()
	fmt.Println("counted:", n)
}

// preemption needs SIGURG: loops that call nothing must not keep others out.
func preemption() {
	runtime.GOMAXPROCS(4)
	var stop int32
	for i := 0; i < 8; i++ {
		go func() {
			x := 0
			for atomic.LoadInt32(&stop) == 0 {
				x++
			}
		}()
	}
	ticks := 0
	t := time.NewTicker(5 * time.Millisecond)
	for range t.C {
		if ticks++; ticks == 20 {
			break
		}
	}
	t.Stop()
	runtime.GC()
	atomic.StoreInt32(&stop, 1)
	fmt.Println("ticks past busy loops:", ticks)
}

func timers() {
	start := time.Now()
	var mu sync.Mutex
	var order []int
	var wait sync.WaitGroup
	// So far apart that they are due one by one, also where all threads have waited for a processor for some time.
	for _, ms := range []int{1200, 400, 800, 1} {
		ms := ms
		wait.Add(1)
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
			mu.Lock()
			order = append(order, ms)
			mu.Unlock()
			wait.Done()
		})
	}
	wait.Wait()
	fmt.Println("timers:", order, time.Since(start) >= 1200*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	fmt.Println("context:", ctx.Err())
}

func memory() {
	debug.SetGCPercent(20)
	var keep [][]byte
	for i := 0; i < 2000; i++ {
		b := make([]byte, 64<<10)
		b[i%len(b)] = byte(i)
		if i%20 == 0 {
			keep = append(keep, b)
		}
	}
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Println("kept:", len(keep), "collected:", m.NumGC > 5, "in use under 64 MiB:", m.HeapInuse < 64<<20)
	runtime.KeepAlive(keep)
}

func faults() {
	func() {
		defer func() { fmt.Println("recovered:", recover()) }()
		var p *int
		*p = 1
	}()
	func() {
		defer func() { fmt.Println("recovered:", recover()) }()
		zero := len(os.Args) - len(os.Args)
		fmt.Println(1 / zero)
	}()
	var deep func(n int) int
	deep = func(n int) int {
		var pad [100]int
		if n == 0 {
			return pad[0]
		}
		return deep(n-1) + 1
	}
	fmt.Println("deep stack:", deep(100000))
}

func web() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s", r.URL.Query().Get("name"))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
	})
	server := &http.Server{Handler: mux}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	base := "http://" + l.Addr().String()
	var wait sync.WaitGroup
	var good int64
	for i := 0; i < 20; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			for j := 0; j < 10; j++ {
				r, err := http.Get(fmt.Sprintf("%s/hello?name=%d", base, i))
				if err != nil {
					fmt.Println("get:", err)
					return
				}
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil && string(body) == fmt.Sprintf("hello %d", i) {
					atomic.AddInt64(&good, 1)
				}
			}
		}(i)
	}
	wait.Wait()
	fmt.Println("requests answered:", good)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	r, err := http.Post(base+"/echo", "application/octet-stream", bytes.NewReader(big))
	check(err)
	back, err := io.ReadAll(r.Body)
	check(err)
	r.Body.Close()
	fmt.Println("echoed:", len(back), bytes.Equal(big, back))
	client := http.Client{Timeout: 50 * time.Millisecond}
	_, err = client.Get(base + "/slow")
	var nerr net.Error
	fmt.Println("timeout:", errors.As(err, &nerr) && nerr.Timeout())
	check(server.Shutdown(context.Background()))
	fmt.Println("server:", <-done)
	_, err = net.Dial("tcp", l.Addr().String())
	fmt.Println("refused:", errors.Is(err, syscall.ECONNREFUSED))
}

func packets() {
	a, err := net.ListenPacket("udp", "127.0.0.1:0")
	check(err)
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := a.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = a.WriteTo(bytes.ToUpper(b[:n]), from)
		}
	}()
	c, err := net.Dial("udp", a.LocalAddr().String())
	check(err)
	_, err = c.Write([]byte("datagram"))
	check(err)
	b := make([]byte, 100)
	n, err := c.Read(b)
	check(err)
	fmt.Println("udp:", string(b[:n]))
	check(c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	_, err = c.Read(b)
	fmt.Println("deadline:", errors.Is(err, os.ErrDeadlineExceeded))
	a.Close()
	c.Close()
	u, err := net.Listen("unix", "socket")
	check(err)
	go func() {
		c, err := u.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	s, err := net.Dial("unix", "socket")
	check(err)
	fmt.Fprint(s, "over a unix socket")
	check(s.(*net.UnixConn).CloseWrite())
	text, err := io.ReadAll(s)
	check(err)
	fmt.Println("unix:", string(text))
	u.Close()
}

func signals() {
	c := make(chan os.Signal, 10)
	signal.Notify(c, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGURG)
	self, _ := os.FindProcess(os.Getpid())
	for _, s := range []os.Signal{syscall.SIGUSR1, syscall.SIGHUP} {
		check(self.Signal(s))
		for {
			// The runtime's own signals come here, too.
			if got := <-c; got != syscall.SIGURG {
				fmt.Println("signal:", got)
				break
			}
		}
	}
	signal.Stop(c)
	signal.Ignore(syscall.SIGHUP)
	check(self.Signal(syscall.SIGHUP))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	check(self.Signal(os.Interrupt))
	<-ctx.Done()
	stop()
	fmt.Println("interrupted")
}

func children() {
	out, err := exec.Command("echo", "from", "a", "child").Output()
	check(err)
	fmt.Printf("child: %s", out)
	err = exec.Command("false").Run()
	fmt.Println("false:", err)
	err = exec.Command("/no/such/program").Run()
	fmt.Println("missing:", errors.Is(err, os.ErrNotExist))
	cat := exec.Command("tr", "a-z", "A-Z")
	cat.Stdin = strings.NewReader("through a pipe")
	out, err = cat.CombinedOutput()
	check(err)
	fmt.Printf("tr: %s\n", out)
	cmd := exec.Command("env")
	cmd.Env = []string{"ONE=1"}
	cmd.Dir = "/"
	out, err = cmd.Output()
	check(err)
	fmt.Printf("env: %s", out)
	// Long enough for it to have begun, on a machine that is slow.
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	err = exec.CommandContext(ctx, "sleep", "20").Run()
	fmt.Println("sleep:", err)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var all []string
	for i := 0; i < 12; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			out, err := exec.Command("echo", fmt.Sprint(i%4)).Output()
			mu.Lock()
			defer mu.Unlock()
			all = append(all, strings.TrimSpace(string(out))+fmt.Sprint(err))
		}(i)
	}
	wait.Wait()
	sort.Strings(all)
	fmt.Println("at once:", all)
	cmd = exec.Command("sleep", "20")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	check(cmd.Start())
	check(syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
	fmt.Println("group:", cmd.Wait())
}

func profile() {
	var b bytes.Buffer
	check(pprof.StartCPUProfile(&b))
	end := time.Now().Add(300 * time.Millisecond)
	n := 0
	for time.Now().Before(end) {
		for i := 0; i < 1000; i++ {
			n += i
		}
	}
	pprof.StopCPUProfile()
	fmt.Println("profile:", b.Len() > 200, n > 0)
}

func files() {
	check(os.MkdirAll("a/b/c", 0o755))
	check(os.WriteFile("a/b/c/file", bytes.Repeat([]byte("line\n"), 10000), 0o644))
	f, err := os.OpenFile("a/b/c/file", os.O_RDWR|os.O_APPEND, 0)
	check(err)
	_, err = f.WriteString("last")
	check(err)
	check(f.Sync())
	info, err := f.Stat()
	check(err)
	fmt.Println("file:", info.Size(), info.Mode())
	f.Close()
	check(os.Rename("a/b/c/file", "moved"))
	entries, err := os.ReadDir("a/b/c")
	fmt.Println("left:", len(entries), err)
	check(os.RemoveAll("a"))
	check(os.Remove("moved"))
	r, w, err := os.Pipe()
	check(err)
	check(r.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	_, err = r.Read(make([]byte, 1))
	fmt.Println("pipe:", errors.Is(err, os.ErrDeadlineExceeded))
	w.Close()
	r.Close()
}

// serve is an HTTP server for a client outside, until SIGTERM, at a port of this
// machine or at an address with a port.
func serve(at string) {
	if !strings.Contains(at, ":") {
		at = "127.0.0.1:" + at
	}
	l, err := net.Listen("tcp", at)
	check(err)
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d\n", r.Method, r.URL.Path, len(body))
	})
	server := &http.Server{}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background())
	}()
	fmt.Println("serving")
	fmt.Println(server.Serve(l))
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		serve(os.Args[2])
		return
	}
	goroutines()
	preemption()
	timers()
	memory()
	faults()
	files()
	web()
	packets()
	signals()
	children()
	profile()
}
