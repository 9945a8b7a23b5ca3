// The functions of an instruction set, and the arguments of a pass over a stack of layers.
//
// The kernels are written once, in terms of vectors of LANES floats, and compiled for several
// instruction sets (sets.cpp). Every row's result is computed in an order that does not depend on
// the other rows, the batch, the width of a cache or the number of threads: a token scored in a
// block gets exactly the logits that it gets alone.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

namespace specdec {

// NaN is larger than any number, so that a maximum never hides one.
inline float larger_of(float a, float b) { return b > a || b != b ? b : a; }

// The step of 8-bit codes, -127 to 127. Where the largest is NaN or infinite the step is NaN, and so
// is all that it scales.
inline float step_of(float largest) { return largest < INFINITY ? largest / 127.0f : NAN; }

// In float32, too, inputs are whole numbers of steps beside weights that were stored in 8 bits, where
// the processor has products of bytes: eight million steps to the largest, written as three digits of
// base 252, -126 to 126 (a rounded one 127), the highest first. Each digit is a row of codes.
constexpr int DIGITS = 3;
constexpr float BASE = 252, STEPS = 8e6f;

// Whether numbers times 127 or STEPS / largest are codes; if not (0, below 1e-36 or 3e-32, infinite,
// NaN), all are 0.
inline bool may_scale(float inverse) { return inverse > 0 && inverse < INFINITY; }

// A linear layer, its weights laid out in panels of outputs: [panel][in][outputs of a panel], and
// with 8 bits [panel][in / 4][outputs of a panel][4].
struct Linear {
  int in = 0, out = 0;
  const float* weights = nullptr;    // float32; or
  const uint16_t* halves = nullptr;  // the same numbers in float16; or
  const int8_t* bytes = nullptr;     // in 8 bits; or
  const int8_t* codes = nullptr;     // in 8 bits, for sums of integers
  int digits = 0;                    // of inputs beside codes: 1 or DIGITS
  const float* scale = nullptr;      // [out padded to panels] what an output's are multiples of
  const int32_t* offset = nullptr;  // [out padded to panels] 128 * sum of an output's codes
  const float* bias = nullptr;      // [out padded to panels]

  // Of the codes of a row of inputs.
  size_t row_bytes() const { return size_t(digits) * ((in + 3) / 4 * 4); }
};

// One output's weights of a linear layer in 8 bits, [in]: each code times its step.
static inline void unpack(const Linear& linear, int panel, int64_t output, float* out) {
  const int64_t groups = (linear.in + 3) / 4;
  const int8_t* codes =
      linear.codes + (output / panel * groups * panel + output % panel) * 4;
  const float step = linear.scale[output];
  for (int k = 0; k < linear.in; ++k) out[k] = step * float(codes[k / 4 * panel * 4 + k % 4]);
}

// A layer norm; without a bias it leaves the mean as it is (RMS).
struct Norm {
  const float* gain = nullptr;
  const float* bias = nullptr;
  float epsilon = 0;
};

// What is added to scores, by the distance from a query to a key: [heads, 2 * reach + 1].
struct Relative {
  const float* data = nullptr;  // null = nothing is added
  int64_t reach = 0;            // larger distances count as this one
};

enum class Activation { none, relu, relu_squared, gelu, gelu_tanh, swish, tanh };

struct Layer {
  Linear qkv, out, query, cross_out, up, down;
  Norm self_norm, cross_norm, ffn_norm;
  bool reads_source = false;
  bool norm_before = false;
  bool gated = false;  // `up` gives what is activated, and as many factors of it
  float scale = 1;     // of the products of queries and keys
  Relative relative;   // in self-attention
  Activation activation = Activation::relu;
};

// One new position of a row.
struct Place {
  int row;
  int64_t at;         // where its keys and values go: a position of its row's cache
  int width;          // positions of the row that it may attend to
  const float* mask;  // additive, over these; null = all are seen
  const int64_t* distances;  // to these, for relative positions; null = from `at`, each in its place
};

// The source of one row, as one layer reads it: keys and values [width, 2, H, d].
struct SourceStates {
  const float* data;
  int width;
  const float* mask;  // additive; null = all are seen
};

struct Pass {
  int rows = 0, count = 0;           // B, and M new positions of all rows
  int dim = 0, heads = 0;
  int width = 0, ffn = 0;            // of all heads together, W; of the input of `down`
  const float* input = nullptr;      // [M, D]
  const float* positions = nullptr;  // [M, D], added before each layer; null = none
  const Place* places = nullptr;     // [M]
  float* const* caches = nullptr;    // [layers, B] of keys and values [capacity, 2, H, d]; or, null,
  const int64_t* firsts = nullptr;   // [B] positions attend to those of their row, from its first on
  const SourceStates* sources = nullptr;  // [layers, B]
  const int64_t* asked = nullptr;    // [m] positions whose output is wanted; null = all M
  int num_asked = 0;                 // m, or M
  float* output = nullptr;           // [m, D]
  // Buffers.
  float* x = nullptr;       // [M, D] the residual stream
  float* normed = nullptr;  // [M, D]
  float* branch = nullptr;  // [M, W or D] output of attention, and of a layer
  float* qkv = nullptr;     // [M, 3 W]
  float* hidden = nullptr;  // [M, the larger of D and what `up` gives]
  float* gated = nullptr;   // [M, ffn], where layers are gated
};

// Queries whose attention is computed together, at most.
constexpr int QUERIES_MOST = 6;

// Rows that every thread quantises for itself: cheaper than waiting for each other.
constexpr int ROWS_ALONE = 64;

// What the threads of a pass need beside its tensors; M rows are quantised.
struct Scratch {
  uint8_t* codes;   // [threads, ROWS_ALONE, most bytes of a row]
  float* steps;     // [threads, ROWS_ALONE]
  float* scores;    // [threads, QUERIES_MOST, widest mask padded to 16], twice with relative positions
  int64_t codes_stride, steps_stride, scores_stride;  // a thread
  uint8_t* shared_codes;  // [M, most bytes of a row], where M > ROWS_ALONE
  float* shared_steps;    // [M]
};

struct Product {
  const float* input = nullptr;  // [M, in]
  int rows = 0;                  // M
  float* output = nullptr;       // [M, out]
  const float* residual = nullptr;          // [., out], added; null = nothing
  const int64_t* residual_rows = nullptr;   // [M] which of its rows; null = the same ones
  Activation activation = Activation::none;
};

struct Candidate {
  float score;
  int64_t token;
};

// The first of the largest logits of a row, which is `finite` if that is and if none is NaN.
struct Best {
  int64_t token;
  bool finite;
};

// A sequential head over the blocks of all rows: heads.py, SequentialHead.draft.
struct Walk {
  int rows = 0, length = 0;           // B, K
  int dim = 0, hidden = 0;            // D, H
  int told = 0;                       // H, and D more for a query where the head reads the source
  int heads = 0;                      // of its attention to the source; 0 = it has none
  int count = 0;                      // the most candidates of a position; 0 = all listed types
  Linear state, out, context;
  const SourceStates* sources = nullptr;  // [B]
  const float* states = nullptr;      // [B, K, D]
  // Candidates are found by logits of all types, or by scores of those listed for each row.
  const float* logits = nullptr;      // [B, K, V]; null = scores
  int width = 0;                      // V
  const Linear* lists = nullptr;      // [B] projections onto these types
  const int32_t* const* types = nullptr;  // [B], those of each row
  int64_t scores_stride = 0;          // of `scores`
  const int64_t* before = nullptr;    // [B] the last committed tokens
  const float* embeddings = nullptr;  // [V, D]; or
  Linear packed;                      // the same in 8 bits
  const uint16_t* table = nullptr;    // [V, told] bfloat16, what the previous token adds to `state`
  const int64_t* blocks = nullptr;    // [B] the first row of each block in states
  int64_t* drafted = nullptr;         // [B, K]
  float* confidences = nullptr;       // [B, K]
  // Buffers.
  Candidate* candidates = nullptr;    // [B, K, count]
  float* scores = nullptr;     // [B, scores_stride]; a row is [K, its types], or one position if all
                               // of these are candidates
  float* state_told = nullptr;  // [B * K, told] what the block's states tell
  float* sums = nullptr;        // [B, told] the same and what the token before tells, of a position
  float* read = nullptr;        // [B, D] the source as attended to
  float* rectified = nullptr;   // [B, H]
  float* corrected = nullptr;   // [B, D] the states of a position
};

// What one query of one head attends to.
struct Attended {
  const float* keys;    // of the first position
  const float* values;
  int64_t stride;       // floats from one position to the next
  const float* mask;    // null = all are seen
  int width;            // positions
};

// A query of one head, and where the mixture of the values goes.
struct Asking {
  const float* query;
  Attended seen;
  float* out;
};

struct Isa {
  const char* name;
  int panel;      // outputs a panel
  bool has_half;  // converts float16 to float32
  bool has_dot;   // adds up four products of bytes at once
  float (*largest_size)(const float*, int64_t count);  // NaN if one of them is
  // Codes of one row, each `moved` up, and padded with `moved` to a multiple of 4; returns their step.
  float (*quantise)(const float*, int count, int moved, uint8_t* codes);
  // Called by every thread of a team; barriers inside.
  void (*run_layers)(const Layer*, int first, int stop, const Pass&, const Scratch&, int thread,
                     int threads);
  void (*multiply)(const Linear&, const Product&, const Scratch&, int thread, int threads);
  void (*walk)(const Walk&, const Scratch&, int thread, int threads);
  // Of up to QUERIES_MOST queries that attend to the same keys, with masks and widths of their own.
  // scores: a buffer for the width padded to 16 of each.
  void (*attend)(const Asking*, int count, int dim, float scale, float* scores);
  void (*normalise)(const Norm&, const float*, int dim, float* out);
  // Of one row of logits.
  Best (*best_of)(const float*, int width);
  float (*log_total_of)(const float*, int width);
  int64_t (*rank_of)(const float*, int width, int64_t token);
  void (*largest_of)(const float*, int width, int count, Candidate*);
};

// Those that this processor can run, the best first. For tests and measurements, the environment
// variable SPECDEC_INSTRUCTION_SET puts another one first.
std::vector<const Isa*> usable();

// The one of that name; "" = the best. Raises std::invalid_argument where it cannot be run.
const Isa& isa_of(const std::string& name);

// The best; looked up once, as every round needs it.
inline const Isa& best_isa() {
  static const Isa& isa = isa_of("");
  return isa;
}

}  // namespace specdec
