// What the machine gives two processes at this moment: prints the seconds of an exchange of 8 bytes
// between them, and the bytes per second that one, and each of both, reaches with memcpy.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kExchanges = 500;
constexpr int kSamples = 61;
constexpr int kCopies = 7;
constexpr size_t kCopyBytes = 64 << 20;
constexpr useconds_t kAloneMicroseconds = 200'000;
constexpr int kSpinsBeforeYield = 5000;  // where there is only one core, the peer needs it

// What one process tells the other, each value in a cache line of its own.
struct Line {
  alignas(64) std::atomic<uint64_t> sent{0};
  alignas(64) double seconds = 0;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void WaitFor(const std::atomic<uint64_t>& word, uint64_t value) {
  for (int spins = 1; word.load(std::memory_order_acquire) < value; ++spins) {
    if (spins % kSpinsBeforeYield == 0) sched_yield();
  }
}

// Each to a processor of its own, where there are two: a loaded machine may well keep both on one.
void Pin(int process) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable) || seen++ != process) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
}

// Each shows the other 8 bytes and waits for the other's.
void Exchange(Line* mine, Line* other, uint64_t* count) {
  ++*count;
  mine->sent.store(*count, std::memory_order_release);
  WaitFor(other->sent, *count);
}

double ExchangeSeconds(Line* mine, Line* other, uint64_t* count) {
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    const double begin = Seconds();
    for (int k = 0; k < kExchanges; ++k) Exchange(mine, other, count);
    samples.push_back((Seconds() - begin) / kExchanges);
  }
  return *std::min_element(samples.begin(), samples.end());  // what the caches can do
}

double CopySeconds(char* target, const char* source) {
  std::vector<double> samples;
  for (int i = 0; i < kCopies; ++i) {
    const double begin = Seconds();
    std::memcpy(target, source, kCopyBytes);
    asm volatile("" : : "r"(target) : "memory");  // so that it is done
    samples.push_back(Seconds() - begin);
  }
  return Median(samples);
}

}  // namespace

int main() {
  void* shared =
      mmap(nullptr, sizeof(Line) * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Line* lines = new (shared) Line[2];
  const pid_t child = fork();
  if (child < 0) return 1;
  const int me = child == 0 ? 1 : 0;
  Pin(me);
  Line* mine = &lines[me];
  Line* other = &lines[1 - me];
  std::vector<char> source(kCopyBytes, 1);
  std::vector<char> target(kCopyBytes, 2);
  uint64_t count = 0;
  Exchange(mine, other, &count);
  const double exchange = ExchangeSeconds(mine, other, &count);
  // The other one sleeps for about as long; what it is too early, it waits in the exchange.
  if (me == 0) mine->seconds = CopySeconds(target.data(), source.data());
  if (me == 1) usleep(kAloneMicroseconds);
  const double alone = lines[0].seconds;
  Exchange(mine, other, &count);
  mine->seconds = CopySeconds(target.data(), source.data());
  Exchange(mine, other, &count);
  if (me == 1) _exit(0);
  const double both = std::max(mine->seconds, other->seconds);
  std::printf("%.9g %.9g %.9g\n", exchange, kCopyBytes / alone, kCopyBytes / both);
  return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
