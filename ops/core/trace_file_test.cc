#include "ops/core/trace_file.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace hvd {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/hvd-trace-file-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() {
    for (const std::string& name : Names()) unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    DIR* dir = opendir(path_.c_str());
    while (const dirent* entry = readdir(dir)) names.insert(entry->d_name);
    closedir(dir);
    names.erase(".");
    names.erase("..");
    return names;
  }

 private:
  std::string path_;
};

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The numbers of an array of numbers, whose first is the part's; -1 where it is none.
int CountNumbers(const std::string& text) {
  if (text.compare(0, 2, "[\n") != 0 || text.size() < 5) return -1;
  if (text.compare(text.size() - 3, 3, "\n]\n") != 0) return -1;
  std::stringstream lines(text.substr(2, text.size() - 5));
  std::string line;
  int count = 0;
  bool ended = false;
  while (std::getline(lines, line)) {
    if (ended) return -1;  // no comma before it
    ended = line.empty() || line.back() != ',';
    if (!ended) line.pop_back();
    if (line.empty() || line.find_first_not_of("0123456789") != std::string::npos) return -1;
    ++count;
  }
  return ended ? count : -1;
}

std::string PartHeader(int part) { return std::to_string(part); }

std::string Numbers(int from, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += ",\n" + std::to_string(from + i);
  return text;
}

TEST(TraceFile, IsAnArrayAfterEveryStep) {
  Folder folder;
  TraceFile file;
  const std::string path = folder / "x.json";
  ASSERT_TRUE(file.Open(path, 1 << 20, PartHeader).ok());
  EXPECT_EQ(Read(path), "[\n1\n]\n");
  int expected = 1;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(file.Append(Numbers(i, i)).ok());
    expected += i;
    EXPECT_EQ(CountNumbers(Read(path)), expected);
  }
  file.Close();
  EXPECT_EQ(CountNumbers(Read(path)), expected);
  EXPECT_EQ(folder.Names(), std::set<std::string>{"x.json"});
}

TEST(TraceFile, ReplacesWhatIsThere) {
  Folder folder;
  std::ofstream(folder / "x.json") << "of an earlier run";
  TraceFile file;
  ASSERT_TRUE(file.Open(folder / "x.json", 1 << 20, PartHeader).ok());
  EXPECT_EQ(CountNumbers(Read(folder / "x.json")), 1);
}

TEST(TraceFile, SaysWhatItCannotCreate) {
  Folder folder;
  TraceFile file;
  const Status status = file.Open(folder / "no/such/folder.json", 1 << 20, PartHeader);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("No such file or directory"), std::string::npos);
}

TEST(TraceFile, NeverExceedsItsSize) {
  Folder folder;
  TraceFile file;
  constexpr int64_t kMax = 4096;
  ASSERT_TRUE(file.Open(folder / "x.json", kMax, PartHeader).ok());
  int appended = 0;
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(file.Append(Numbers(1000 + appended, 10)).ok());
    appended += 10;
    int64_t bytes = 0;
    for (const std::string& name : folder.Names()) {
      const std::string text = Read(folder / name);
      EXPECT_GT(CountNumbers(text), 0) << name << ": " << text;
      bytes += static_cast<int64_t>(text.size());
    }
    ASSERT_LE(bytes, kMax);
  }
  file.Close();
  const std::set<std::string> names = folder.Names();
  ASSERT_EQ(names.size(), 3u);
  // Nothing is missing between the oldest part that is left and the end.
  int64_t numbers = 0;
  for (const std::string& name : names) numbers += CountNumbers(Read(folder / name)) - 1;
  EXPECT_GT(numbers, 300);
  const std::string newest = Read(folder / "x.json");
  EXPECT_NE(newest.find(std::to_string(1000 + appended - 1) + "\n]"), std::string::npos);
  std::string oldest;
  int lowest = 0;
  for (const std::string& name : names) {
    int part = 0;
    if (std::sscanf(name.c_str(), "x.part-%d.json", &part) == 1 && (lowest == 0 || part < lowest)) {
      lowest = part;
      oldest = Read(folder / name);
    }
  }
  const int first = std::atoi(oldest.c_str() + oldest.find(",\n") + 2);
  EXPECT_EQ(numbers, 1000 + appended - first);
}

// What a reader finds at any moment.
TEST(TraceFile, ReadersFindAnArrayAtEveryMoment) {
  Folder folder;
  const std::string path = folder / "x.json";
  TraceFile file;
  ASSERT_TRUE(file.Open(path, 1 << 20, PartHeader).ok());
  std::atomic<bool> done{false};
  std::atomic<int> begun{0}, ended{0};
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) {
      ++begun;
      if (!file.Append(Numbers(i, 700)).ok()) break;
      ++ended;
      usleep(2000);
    }
    done.store(true);
  });
  int reads = 0, most = 0;
  while (!done.load()) {
    const int before = ended.load();
    const int count = CountNumbers(Read(path));
    // The copy that was opened is written to again by the one after the next.
    if (begun.load() - before > 1) continue;
    EXPECT_GT(count, 0);
    most = std::max(most, count);
    ++reads;
  }
  writer.join();
  EXPECT_GT(reads, 10);
  EXPECT_GT(most, 700);
}

TEST(TraceFile, AKilledWriterLeavesAnArray) {
  for (int run = 0; run < 20; ++run) {
    Folder folder;
    const std::string path = folder / "x.json";
    const pid_t child = fork();
    if (child == 0) {
      TraceFile file;
      if (!file.Open(path, 1 << 20, PartHeader).ok()) _exit(1);
      for (int i = 0;; ++i) (void)file.Append(Numbers(i, 900)).ok();
    }
    while (access(path.c_str(), F_OK) != 0) usleep(100);
    usleep(1000 + 300 * static_cast<useconds_t>(run));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_GT(CountNumbers(Read(path)), 0);
  }
}

// A file that may not grow, as on a full disk.
void FillTheDisk(const std::string& path) {
  signal(SIGXFSZ, SIG_IGN);
  TraceFile file;
  ASSERT_TRUE(file.Open(path, 1 << 20, PartHeader).ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  int written = 1, failed = 0;
  for (int i = 0; i < 20; ++i) {
    const Status status = file.Append(Numbers(100, 30));
    status.ok() ? written += 30 : ++failed;
    EXPECT_EQ(CountNumbers(Read(path)), written);
    if (status.ok()) continue;
    EXPECT_NE(status.message().find("File too large"), std::string::npos);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_GT(failed, 0);
  EXPECT_GT(written, 1);
  ASSERT_TRUE(file.Append(Numbers(100, 30)).ok());
  EXPECT_EQ(CountNumbers(Read(path)), written + 30);
}

TEST(TraceFile, GoesOnWhenThereIsRoomAgain) {
  Folder folder;
  FillTheDisk(folder / "x.json");
}

// Where there can be no second copy the first one is written to.
TEST(TraceFile, DoesWithOneCopy) {
  Folder folder;
  const std::string in_the_way = folder / ".x.json.next";
  ASSERT_EQ(mkdir(in_the_way.c_str(), 0755), 0);
  FillTheDisk(folder / "x.json");
  TraceFile file;
  ASSERT_TRUE(file.Open(folder / "x.json", 4096, PartHeader).ok());
  struct stat first = {}, later = {};
  ASSERT_EQ(stat((folder / "x.json").c_str(), &first), 0);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(file.Append(Numbers(100, 10)).ok());
    EXPECT_EQ(CountNumbers(Read(folder / "x.json")), 1 + 10 * (i + 1));
  }
  ASSERT_EQ(stat((folder / "x.json").c_str(), &later), 0);
  EXPECT_EQ(first.st_ino, later.st_ino);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(file.Append(Numbers(100, 10)).ok());
  EXPECT_GT(CountNumbers(Read(folder / "x.json")), 0);
  file.Close();
  EXPECT_EQ(folder.Names().size(), 4u);  // two parts, the last one, and what is in the way
  rmdir(in_the_way.c_str());
}

TEST(TraceFile, BeginsAnewWhereItWasRemoved) {
  Folder folder;
  const std::string path = folder / "x.json";
  TraceFile file;
  ASSERT_TRUE(file.Open(path, 1 << 20, PartHeader).ok());
  unlink(path.c_str());
  EXPECT_FALSE(file.Append(Numbers(1, 3)).ok());
  ASSERT_TRUE(file.Append(Numbers(4, 3)).ok());
  EXPECT_EQ(CountNumbers(Read(path)), 4);
}

}  // namespace
}  // namespace hvd
