#include "ops/hosts/message.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace hvd::hosts {
namespace {

// A batch is its length, then the messages. All hosts are of one kind (the data is raw memory,
// too).
using Length = uint32_t;

class Writer {
 public:
  explicit Writer(std::vector<char>* out) : out_(out) {}

  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const char* bytes = reinterpret_cast<const char*>(&value);
    out_->insert(out_->end(), bytes, bytes + sizeof(T));
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<Length>(text.size()));
    out_->insert(out_->end(), text.begin(), text.end());
  }
  template <typename T>
  void operator()(const std::vector<T>& values) {
    (*this)(static_cast<Length>(values.size()));
    for (const T& value : values) (*this)(value);
  }

 private:
  std::vector<char>* const out_;
};

class Reader {
 public:
  Reader(const char* begin, const char* end) : next_(begin), end_(end) {}

  bool ok() const { return ok_; }
  bool at_end() const { return next_ == end_; }

  template <typename T>
  void operator()(T& value) {
    if (!Has(sizeof(T))) return;
    std::memcpy(&value, next_, sizeof(T));
    next_ += sizeof(T);
  }
  void operator()(std::string& text) {
    Length length = 0;
    (*this)(length);
    if (!Has(length)) return;
    text.assign(next_, length);
    next_ += length;
  }
  template <typename T>
  void operator()(std::vector<T>& values) {
    Length length = 0;
    (*this)(length);
    if (!Has(length)) return;  // each takes a byte at least
    values.resize(length);
    for (T& value : values) (*this)(value);
  }

 private:
  bool Has(size_t bytes) {
    ok_ = ok_ && static_cast<size_t>(end_ - next_) >= bytes;
    return ok_;
  }

  const char* next_;
  const char* const end_;
  bool ok_ = true;
};

// One list of fields, to write and to read.
template <typename Fields, typename AnyMessage>
void Visit(Fields& fields, AnyMessage& m) {
  using Kind = Message::Kind;
  fields(m.kind);
  switch (m.kind) {
    case Kind::kReady:
      fields(m.epoch);
      fields(m.plan_position);
      fields(m.ready.key);
      fields(m.ready.id);
      fields(m.ready.fingerprint);
      fields(m.ready.process_set);
      fields(m.ready.last_rank);
      fields(m.ready.set);
      fields(m.ready.participants);
      fields(m.ready.opening);
      fields(m.ready.mismatch);
      fields(m.ready.is_join);
      fields(m.ready.plannable);
      fields(m.ready.name);
      return;
    case Kind::kExecute:
      fields(m.agreement.key);
      fields(m.agreement.mismatch);
      fields(m.agreement.last_rank);
      fields(m.agreement.participants);
      return;
    case Kind::kPlan:
      fields(m.plan);
      return;
    case Kind::kFail:
    case Kind::kFailAll:
      fields(m.key);
      fields(m.code);
      fields(m.text);
      return;
    case Kind::kLeft:
      fields(m.host);
      return;
    case Kind::kBeat:
      fields(m.is_quiet);
      fields(m.text);
      return;
    case Kind::kAbort:
      fields(m.text);
      return;
    case Kind::kClock:
      for (auto& time : m.clock_ns) fields(time);
      return;
    case Kind::kDepart:
    case Kind::kBye:
      return;
  }
}

}  // namespace

bool Append(const Message& message, size_t max_bytes, std::vector<char>* batch) {
  const size_t before = batch->size();
  if (before == 0) batch->resize(sizeof(Length));
  Writer writer(batch);
  Visit(writer, message);
  if (batch->size() > max_bytes) {
    batch->resize(before);
    return false;
  }
  const auto length = static_cast<Length>(batch->size());
  std::memcpy(batch->data(), &length, sizeof(length));
  return true;
}

Status Parse(const char* batch, size_t max_bytes, std::vector<Message>* messages) {
  Length length = 0;
  std::memcpy(&length, batch, sizeof(length));
  if (length < sizeof(length) || length > max_bytes) {
    return Internal("a control message of " + std::to_string(length) + " bytes; at most " +
                    std::to_string(max_bytes) + " are expected");
  }
  Reader reader(batch + sizeof(length), batch + length);
  while (!reader.at_end()) {
    Message message;
    Visit(reader, message);
    if (!reader.ok()) return Internal("a control message that ends too early");
    messages->push_back(std::move(message));
  }
  return Status::Ok();
}

}  // namespace hvd::hosts
