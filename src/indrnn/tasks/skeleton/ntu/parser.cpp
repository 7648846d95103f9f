// Reads the text of an NTU RGB+D `.skeleton` file. What it cannot read it refuses without saying why: parser.py, which
// is the specification, reads the text again then, and either can or says what is wrong.
//
// Coordinates are correctly rounded to double, and those to float: the same bits as from Python.

#include <cfloat>
#include <charconv>
#include <cstring>

#include "calls.h"

namespace indrnn {

// What Python hands over; parser.py has the same struct, and compares its size when it first calls.
struct NtuCall {
  const char* text;                  // ends in a newline
  int64_t size;                      // bytes of it
  int64_t most_frames, most_bodies;  // that there is room for
  int64_t frames, bodies;            // out: that were found
  int64_t* counts;                   // (frames,): the bodies in each
  int64_t* ids;                      // (bodies,)
  float* joints;                     // (bodies, 25, 3)
  uint8_t* tracked;                  // (bodies, 25)
};

namespace {

constexpr int64_t joints_of_a_body = 25, fields_of_a_body = 10, fields_of_a_joint = 12, most_bodies_seen = 6;

constexpr double powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_in_a_word(char c) { return c > ' '; }

// The highest bit of each of eight bytes says whether it is in a word: text is below 0x7f, so no sum carries.
uint64_t in_words(const char* text) {
  uint64_t bytes;
  std::memcpy(&bytes, text, 8);
  return (bytes + 0x5f5f5f5f5f5f5f5f) & 0x8080808080808080;
}

// Whether all bytes are printable ASCII, blanks or newlines; else nothing below need think of others.
bool is_text(const char* text, int64_t size) {
  uint8_t odd = 0;  // a byte, and no branches: the compiler takes 16 at once
  for (int64_t i = 0; i < size; ++i) {
    const uint8_t c = uint8_t(text[i]);
    const uint8_t printable = uint8_t(c - ' ') <= '~' - ' ', blank = (c == '\n') | (c == '\r') | (c == '\t');
    odd |= uint8_t(printable | blank) ^ 1;
  }
  return odd == 0;
}

// Each function moves on only within a line, which ends in a newline that none of them steps over, but `end_line`. So
// the end of the text need be looked for at the start of a line alone.
class Reader {
 public:
  Reader(const char* text, int64_t size) : p_(text), end_(text + size) {}

  // To the first word of the next line that has one.
  bool start_line() {
    for (; p_ < end_; ++p_) {
      skip_blanks();
      if (*p_ != '\n') return true;
    }
    return false;
  }

  bool end_line() {
    skip_blanks();
    return *p_++ == '\n';
  }

  // To the end of the line, which has so many words more. Called behind a word.
  bool skip(int64_t words) {
    const char* const stop = static_cast<const char*>(std::memchr(p_, '\n', size_t(end_ - p_)));
    int64_t found = 0;
    for (; stop - p_ >= 8; p_ += 8) {  // where a word begins, of eight bytes at once
      found += int64_t(((in_words(p_) & ~in_words(p_ - 1)) >> 7) * 0x0101010101010101 >> 56);
    }
    for (; p_ < stop; ++p_) found += is_in_a_word(p_[0]) & !is_in_a_word(p_[-1]);
    return found == words;
  }

  // Back over the word before, which there is.
  void back() {
    while (!is_in_a_word(p_[-1])) --p_;
    while (is_in_a_word(p_[-1])) --p_;
  }

  // Digits alone, 18 at most.
  bool whole(int64_t& value) {
    skip_blanks();
    const char* const first = p_;
    value = 0;
    for (; is_digit(*p_) && p_ - first < 18; ++p_) value = 10 * value + (*p_ - '0');
    return p_ != first && !is_in_a_word(*p_);
  }

  bool coordinate(float& value) {
    skip_blanks();
    const bool negative = *p_ == '-';
    if (*p_ == '-' || *p_ == '+') ++p_;
    const char* const first = p_;
    uint64_t mantissa = 0;
    while (is_digit(*p_)) mantissa = 10 * mantissa + uint64_t(*p_++ - '0');
    int64_t digits = p_ - first, exponent = 0;
    if (*p_ == '.') {
      const char* const after = ++p_;
      while (is_digit(*p_)) mantissa = 10 * mantissa + uint64_t(*p_++ - '0');
      exponent = after - p_;
      digits -= exponent;
    }
    if (digits == 0) return false;
    if (*p_ == 'e' || *p_ == 'E') {
      const bool down = *++p_ == '-';
      if (*p_ == '-' || *p_ == '+') ++p_;
      int64_t power;
      if (!is_digit(*p_) || !whole(power)) return false;
      exponent += down ? -power : power;
    }
    if (is_in_a_word(*p_)) return false;
    double number;
    if (digits <= 19 && mantissa <= uint64_t(1) << 53 && exponent >= -22 && exponent <= 22) {
      // Both are exact in double, so one operation rounds once. 19 digits do not overflow.
      const double exact = double(mantissa);
      number = exponent < 0 ? exact / powers_of_ten[-exponent] : exact * powers_of_ten[exponent];
    } else if (!with_more_digits(first, number)) {
      return false;
    }
    if (!(number <= double(FLT_MAX))) return false;
    value = float(negative ? -number : number);
    return true;
  }

 private:
  void skip_blanks() {
    while (is_blank(*p_)) ++p_;
  }

  bool with_more_digits([[maybe_unused]] const char* first, [[maybe_unused]] double& number) const {
#ifdef __cpp_lib_to_chars
    const std::from_chars_result found = std::from_chars(first, p_, number);
    return found.ec == std::errc() && found.ptr == p_;
#else
    return false;
#endif
  }

  const char* p_;
  const char* const end_;
};

bool read_count(Reader& reader, int64_t& count) {
  return reader.start_line() && reader.whole(count) && reader.end_line();
}

bool read_body(Reader& reader, int64_t& id, float* joints, uint8_t* tracked) {
  int64_t count, state;
  if (!reader.start_line() || !reader.whole(id) || !reader.skip(fields_of_a_body - 1) || !reader.end_line()) return false;
  if (!read_count(reader, count) || count != joints_of_a_body) return false;
  for (int64_t j = 0; j < joints_of_a_body; ++j) {
    if (!reader.start_line()) return false;
    for (int64_t i = 0; i < 3; ++i) {
      if (!reader.coordinate(joints[3 * j + i])) return false;
    }
    if (!reader.skip(fields_of_a_joint - 3)) return false;
    reader.back();
    if (!reader.whole(state) || state > 255 || !reader.end_line()) return false;
    tracked[j] = uint8_t(state);
  }
  return true;
}

bool read(NtuCall& call) {
  if (call.size < 1 || call.text[call.size - 1] != '\n' || !is_text(call.text, call.size)) return false;
  Reader reader(call.text, call.size);
  if (!read_count(reader, call.frames) || call.frames > call.most_frames) return false;
  call.bodies = 0;
  for (int64_t t = 0; t < call.frames; ++t) {
    int64_t& count = call.counts[t];
    if (!read_count(reader, count) || count > most_bodies_seen || count > call.most_bodies - call.bodies) return false;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t body = call.bodies++, first = body * joints_of_a_body;
      if (!read_body(reader, call.ids[body], call.joints + 3 * first, call.tracked + first)) return false;
    }
  }
  return !reader.start_line();  // nothing comes after the last frame
}

}  // namespace
}  // namespace indrnn

INDRNN_EXPORT int64_t indrnn_ntu_size() { return sizeof(indrnn::NtuCall); }

// Whether it could be read: 1 or 0.
INDRNN_EXPORT int32_t indrnn_ntu(indrnn::NtuCall* call) { return indrnn::read(*call); }
