// Every kernel of every instruction set that this machine has: to the bit where it sums integers or
// compares, else within a bound that follows from its inputs' norms. A row's result is its own. A
// failure names the worst cell. Of each set it prints digests of all results, which are to be those of
// the other sets: of products of floats, of those with weights stored in 8 bits, and of the rest.

#include <cstdio>
#include <random>

#include "passes.h"

using namespace specdec;
using Numbers = std::vector<float>;

constexpr double UNIT = 0x1p-24;  // of rounding, in float32
constexpr double TINY = 1e-36;    // below it, numbers have fewer digits
constexpr float INF = INFINITY;
static int failures = 0;
static std::mt19937 source;
static uint64_t digests[3];
static enum { FLOATS, STORED, REST } kind_of = REST;  // what is compared

// Nearly normal, and the same on every machine.
static Numbers some(size_t count, float size = 1) {
  Numbers out(count);
  for (float& number : out) {
    int64_t sum = 0;
    for (int i = 0; i < 12; ++i) sum += int32_t(source());
    number = size * std::ldexp(float(sum), -32);
  }
  return out;
}

struct Exact {
  double value, bound = 0;
};

// exact(i) is an Exact; bound 0: the same number, or NaN both.
template <typename Found, typename Of>
static void compare(const std::string& what, const Found& found, const Of& exact) {
  double most = 0;
  size_t worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float number = std::isnan(float(found[i])) ? NAN : float(found[i]);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    uint64_t& digest = digests[kind_of];
    digest = (digest ^ bits) * 0x100000001b3;  // FNV-1a
    const Exact own = exact(i);
    const double error = std::fabs(found[i] - own.value);
    const bool are_same = found[i] == own.value || (std::isnan(found[i]) && std::isnan(own.value));
    const double times = are_same ? 0 : std::isnan(error) ? INF : error / own.bound;
    if (times > most) most = times, worst = i;
  }
  if (most <= 1) return;
  ++failures;
  std::printf("%s: cell %zu is %.9g, not %.9g; the error is %.3g times its bound\n", what.c_str(),
              worst, double(found[worst]), exact(worst).value, most);
}

static double dot(const float* a, const float* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double(a[i]) * b[i];
  return sum;
}

static double norm(const float* x, int count) { return std::sqrt(dot(x, x, count)); }

template <typename... Sizes>
static auto tensor(const Numbers& own, Sizes... sizes) {
  return view(own.data(), sizes...);
}

// Rows of very different sizes; then those whose codes are all 127, either sign by turns, none, one
// alone, and all ties; and numbers for which there are no codes, or that are none.
static Numbers rows_of(int width, int count) {
  Numbers out;
  for (int row = 0; row < count; ++row)
    for (float number : some(width, std::pow(10.0f, row % 7 - 3.0f))) out.push_back(number);
  for (int kind = 0; kind < 8; ++kind)
    for (int k = 0; k < width; ++k) {
      const float sign = k % 2 ? -1 : 1, last = k == width - 1;
      const float ties = k ? k % 254 - 126.5f : 127;
      const float kinds[] = {1,    sign,          0,           last * -3e-7f,
                             ties, 1e-37f * sign, last ? INF : 1, last ? NAN : sign};
      out.push_back(kinds[kind]);
    }
  return out;
}

// A row in 8 bits, by definition.
struct Coded {
  std::vector<int> codes;
  float step = 0;
  Coded(const float* x, int count) : codes(count) {
    for (int k = 0; k < count; ++k) step = larger_of(step, std::fabs(x[k]));
    const float inverse = 127 / step;
    for (int k = 0; may_scale(inverse) && k < count; ++k) {
      const volatile float scaled = x[k] * inverse;
      codes[k] = int(std::nearbyint(scaled));
    }
    step = step_of(step);
  }
};

// The first and last rows give what they give among all, however many there are, on any threads.
template <typename Of>
static void test_product(const std::string& what, const PackedWeights& own, const Numbers& x,
                         const Of& exact) {
  const int in = own.linear.in, out = own.linear.out, rows = int(x.size()) / in;
  Numbers all;
  for (int count : {rows, 1, 2, 3, 4, 5, 6, 7, 8, 13, 20, 64, 65})
    for (int threads : {1, 3})
      for (int first : {0, rows - count}) {
        const Numbers part(x.begin() + first * in, x.begin() + (first + count) * in);
        Numbers found(size_t(count) * out);
        own.multiply(tensor(part, count, in), view(found.data(), count, out), threads);
        if (all.empty()) compare(what, all = found, exact);
        compare(what + ", " + std::to_string(count) + " rows", found,
                [&](size_t i) { return Exact{all[first * out + i]}; });
      }
}

static void test_products(const Isa& isa, int in, int out, bool has_bias) {
  const std::string what = std::string(isa.name) + ", product " + std::to_string(in) + " -> " +
                           std::to_string(out) + (has_bias ? " with bias" : "");
  const Numbers x = rows_of(in, 123), bias = has_bias ? some(out) : Numbers(out);
  Numbers weights = rows_of(in, out), halves = some(size_t(in) * out, 0x1p-20f);
  weights.erase(weights.begin(), weights.end() - in * out);
  for (float& number : halves) number = std::ldexp(std::round(std::ldexp(number, 28)), -28);
  const auto pack = [&](const Numbers& of, bool int8) {
    std::optional<Floats<1>> added;
    if (has_bias) added = tensor(bias, out);
    return PackedWeights(tensor(of, out, in), added, int8, isa.name);
  };
  Numbers eights = some(size_t(in) * out);  // multiples of a factor of its own for each output
  for (int n = 0; n < out; ++n) {
    const float factor = std::ldexp(128.0f + n % 128, n % 40 - 30);
    for (int k = 0; k < in; ++k) {
      float& number = eights[n * in + k];
      number = k ? std::round(std::clamp(60 * number, -127.0f, 127.0f)) * factor : 127 * factor;
    }
  }
  const Numbers* const all[] = {&weights, &halves, &eights};
  for (int kind = 0; kind < 3; ++kind) {
    const Numbers& of = *all[kind];
    const PackedWeights own = pack(of, false);
    kind_of = own.bits() == 8 ? STORED : FLOATS;
    const int bits = isa.has_half ? 32 >> kind : 32;
    const bool may_fit_less = in == 1 || (in * out < 200 && kind == 2);
    if (own.bits() != bits && !may_fit_less)
      ++failures, std::printf("%s: in %d bits, not %d\n", what.c_str(), own.bits(), bits);
    test_product(what + " of floats", own, x, [&](size_t i) {
      const float *row = &x[i / out * in], *weight = &of[i % out * in], added = bias[i % out];
      const double size = norm(row, in) * norm(weight, in) + std::fabs(added) + TINY;
      if (own.linear.digits && size == INF) return Exact{NAN};  // there is no step
      const double lost = own.linear.digits ? 3e-32 * in * norm(weight, in) : 0;  // rows without one
      return Exact{dot(row, weight, in) + added, UNIT * (in + 2) * size + lost};
    });
  }
  for (float number : {NAN, INF, 1 + 0x1p-11f, 0x1p-40f}) {
    halves[0] = 1.5f, halves.back() = number;
    if (in * out > 1 && pack(halves, false).bits() == 16)
      ++failures, std::printf("%s: %g does not fit in 16 bits\n", what.c_str(), number);
  }
  kind_of = REST;
  // Sums of integers, then floats that are each rounded once: the same on every processor.
  std::vector<Coded> coded, rows;
  for (int n = 0; n < out; ++n) coded.emplace_back(&weights[n * in], in);
  for (size_t at = 0; at < x.size(); at += in) rows.emplace_back(&x[at], in);
  test_product(what + " in 8 bits", pack(weights, true), x, [&](size_t i) {
    const Coded &row = rows[i / out], &weight = coded[i % out];
    int32_t sum = 0;
    for (int k = 0; k < in; ++k) sum += row.codes[k] * weight.codes[k];
    const volatile float scaled = float(sum) * weight.step * row.step;
    return Exact{bias[i % out] + scaled};
  });
}

static void test_activations(const Isa& isa) {
  const auto tanh_gelu = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  const std::tuple<const char*, Activation, double (*)(double)> all[] = {
      {"none", Activation::none, [](double v) { return v; }},
      {"relu", Activation::relu, [](double v) { return v < 0 ? 0 : v; }},
      {"relu_squared", Activation::relu_squared, [](double v) { return v < 0 ? 0 : v * v; }},
      {"gelu", Activation::gelu, [](double v) { return 0.5 * v * std::erfc(-v * M_SQRT1_2); }},
      {"gelu_tanh", Activation::gelu_tanh, tanh_gelu},
      {"swish", Activation::swish, [](double v) { return v / (1 + std::exp(-v)); }},
      {"tanh", Activation::tanh, [](double v) { return std::tanh(v); }}};
  const Numbers first_of_two = {1, 0.3f};
  const PackedWeights identity(tensor(first_of_two, 1, 2), {}, false, isa.name);
  Numbers x = {NAN, INF, 0, -0.0f, -100, 100, 1e-30f, -1e-30f};
  for (int i = -2000; i <= 2000; ++i) x.push_back(i / 100.0f + i * 1e-6f);
  for (const auto& [name, activation, exact] : all)
    for (const bool adds : {false, true}) {
      Numbers found(x.size()), beside_zeros(2 * x.size());
      for (size_t i = 0; i < x.size(); ++i) beside_zeros[2 * i] = x[i];
      const float* residual = adds ? x.data() : nullptr;
      const Product product{beside_zeros.data(), int(x.size()), found.data(), residual, nullptr, activation};
      isa.multiply(identity.linear, product, Scratch{}, 0, 1);
      compare(std::string(isa.name) + ", " + name, found, [&, of = exact](size_t i) {
        const double own = of(x[i]), bound = 8 * UNIT * (1 + std::fabs(x[i]) + std::fabs(own));
        return Exact{own + (adds ? x[i] : 0), bound};
      });
    }
}

// Queries of one row get together what each gets alone.
static void test_shared_attention(const Isa& isa, int dim, int width) {
  const int stride = 2 * dim;
  const Numbers memory = some(size_t(width + QUERIES_MOST) * stride);
  const Numbers queries = some(size_t(QUERIES_MOST) * dim, 3);
  Numbers masks(size_t(QUERIES_MOST) * (width + QUERIES_MOST)), scores(size_t(QUERIES_MOST) * (width + 32));
  for (size_t i = 0; i < masks.size(); i += 3) masks[i] = -INF;
  for (int count = 1; count <= QUERIES_MOST; ++count) {
    Numbers together(count * dim), alone(count * dim);
    std::vector<Asking> asking;
    for (int i = 0; i < count; ++i) {
      const float* mask = i == 1 ? nullptr : &masks[i * (width + i)];
      const Attended seen{memory.data(), memory.data() + dim, stride, mask, width + i};
      asking.push_back({&queries[i * dim], seen, &alone[i * dim]});
      isa.attend(&asking[i], 1, dim, 0.3f, scores.data());
      asking[i].out = &together[i * dim];
    }
    isa.attend(asking.data(), count, dim, 0.3f, scores.data());
    compare(std::string(isa.name) + ", attention of " + std::to_string(count) + " queries", together,
            [&](size_t i) { return Exact{alone[i]}; });
  }
}

static void test_attention(const Isa& isa, int dim, int width) {
  const std::string what = std::string(isa.name) + ", attention of " + std::to_string(dim) +
                           " numbers to " + std::to_string(width) + " positions";
  const int room = width + 20, stride = 2 * dim + 3;
  const float scale = 1 / std::sqrt(float(dim));
  const Numbers query = some(dim), nothing(room, -INF);
  Numbers memory = some(size_t(room) * stride), scores(room + 16), mask = nothing;
  const auto attend = [&](const Numbers& added, int count) {
    Numbers out(dim);
    const Attended seen{memory.data(), memory.data() + dim, stride, added.data(), count};
    const Asking asking{query.data(), seen, out.data()};
    isa.attend(&asking, 1, dim, scale, scores.data());
    return out;
  };
  std::vector<double> weights(room, -INF), expected(dim);
  double total = 0, values = 0, size = 0;
  for (int t = 0; t < room; ++t) {
    float* key = &memory[size_t(t) * stride];
    if (t >= width || (t % 3 == 1 && width > 2)) {  // masked: counts for nothing, even as NaN
      std::fill_n(key, stride, NAN);
      continue;
    }
    mask[t] = 0.1f * t;
    weights[t] = dot(query.data(), key, dim) * scale + mask[t];
    values = std::max(values, norm(key + dim, dim));
    size = std::max(size, dim * norm(query.data(), dim) * norm(key, dim) * scale + 2 * mask[t]);
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (int t = 0; t < room; ++t)
    for (int i = 0; i < dim && weights[t] > 0; ++i)
      expected[i] += weights[t] / total * memory[size_t(t) * stride + dim + i];
  const Numbers found = attend(mask, width);
  compare(what, found, [&](size_t i) {
    return Exact{expected[i], 2 * UNIT * (2 * size + width + 8) * values};
  });
  for (int more : {1, 7, 20})
    compare(what + " and masked ones", attend(mask, width + more),
            [&](size_t i) { return Exact{found[i]}; });
  compare(what + ", all masked", attend(nothing, room), [](size_t) { return Exact{0}; });
  memory[stride * (width - 1)] = NAN;
  mask[width - 1] = 0;
  compare(what + ", one of them NaN", attend(mask, width), [](size_t) { return Exact{NAN}; });
}

// rms: without mean and bias.
static void test_norm(const Isa& isa, int dim, bool rms) {
  const Numbers x = some(dim, 3), gain = some(dim), bias = rms ? Numbers(dim) : some(dim);
  Numbers found(dim);
  isa.normalise({gain.data(), rms ? nullptr : bias.data(), 1e-5f}, x.data(), dim, found.data());
  double mean = 0, spread = 0;
  for (float number : x) mean += rms ? 0 : number / double(dim);
  for (float number : x) spread += (number - mean) * (number - mean) / dim;
  const double inverse = 1 / std::sqrt(spread + 1e-5f), size = norm(x.data(), dim) * inverse + 1;
  compare(std::string(isa.name) + ", norm of " + std::to_string(dim), found, [&](size_t i) {
    const double bound = UNIT * (dim + 8) * (size * std::fabs(gain[i]) + std::fabs(bias[i]));
    return Exact{(x[i] - mean) * inverse * gain[i] + bias[i], bound};
  });
}

static void test_logits(const Isa& isa, int width) {
  for (const std::string kind : {"", " with ties", " half of them -inf", " inf", " NaN"}) {
    const std::string what = std::string(isa.name) + ", logits, " + std::to_string(width) + kind;
    Numbers x = some(width, 20);
    for (int i = 0; i < width; ++i) x[i] = kind == " with ties" ? std::round(x[i] / 10) : x[i];
    if (kind == " half of them -inf") std::fill_n(x.begin(), width / 2, -INF);
    if (kind == " inf") x[width / 3] = INF;
    if (kind == " NaN" && width > 1) x[0] = NAN;  // it hides no other
    const auto [first, finite] = isa.best_of(x.data(), width);
    const bool strange = kind == " inf" || (kind == " NaN" && width > 1);
    const Exact wanted = {strange ? 0.0 : 1.0};
    compare(what + ", finite", std::vector<int>{finite}, [&](size_t) { return wanted; });
    std::vector<int64_t> order, best = {first}, ranks, tokens;
    for (int i = 0; i < width; ++i)
      if (!std::isnan(x[i])) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    const auto by_order = [&](size_t i) { return Exact{double(order[i])}; };
    compare(what + ", the best", best, by_order);
    if (kind == " NaN") continue;
    for (size_t i = 0; i < std::min<size_t>(order.size(), 1000); ++i)
      ranks.push_back(isa.rank_of(x.data(), width, order[i]));
    compare(what + ", ranks", ranks, [](size_t i) { return Exact{double(i)}; });
    std::vector<Candidate> found(std::min(width, 9));
    isa.largest_of(x.data(), width, int(found.size()), found.data());
    for (const Candidate& candidate : found) tokens.push_back(candidate.token);
    compare(what + ", the largest", tokens, by_order);
    const double largest = x[order[0]];
    double total = 0;
    for (float number : x) total += std::exp(number - largest);
    const double expected = kind == " inf" ? INF : largest + std::log(total);
    compare(what + ", log of the sum", Numbers{isa.log_total_of(x.data(), width)}, [&](size_t) {
      return Exact{expected, UNIT * (width + 8 + 4 * std::fabs(largest))};
    });
  }
}

// Blocks of all rows, which have prefixes and sources of several lengths, then position by position
// and row by row. t5: the layers of T5, whose heads together have a width of their own.
static void test_layers(const Isa& isa, int heads, int head, int ffn, bool int8, bool t5) {
  constexpr int rows = 3, block = 7, longest = 9, capacity = 24;
  const int wide = heads * head, dim = t5 ? wide + 5 : wide;
  Stack stack(dim, wide, heads, ffn);
  const Numbers gain = some(dim), bias = some(dim), x = some(rows * block * dim);
  const Numbers added = some(heads * 9);
  const auto pack = [&](int in, int out) {
    const Numbers weights = some(size_t(in) * out);
    const Floats<2> own = tensor(weights, out, in);
    return std::make_shared<PackedWeights>(own, std::nullopt, int8, isa.name);
  };
  NormTensors norm{tensor(gain, dim), tensor(bias, dim), 1e-5f};
  if (t5) norm.bias.reset();
  for (bool before : {t5, true})
    stack.add({pack(dim, 3 * wide), pack(wide, dim), pack(dim, wide), pack(wide, dim),
               pack(dim, t5 ? 2 * ffn : ffn), pack(ffn, dim)},
              {norm, norm, norm},
              {before, t5, !t5, before && !t5 ? "relu" : "swish",
               t5 ? std::optional(tensor(added, heads, 9)) : std::nullopt});
  const Numbers read = some(rows * longest * 2 * wide), past = some(2 * rows * capacity * 2 * wide);
  Numbers mask(rows * longest);
  for (int t = 3; t < longest; ++t) mask[t] = -INF;  // of the first row
  const auto run = [&](int first, int count, int start, int length, Numbers& stored, int threads) {
    std::vector<int64_t> at;  // each position sees those up to itself
    Numbers sees(count * length * capacity, -INF);
    for (int i = 0; i < count * length; ++i) {
      const int row = i / length, position = 5 * (first + row) + start + i % length;
      at.push_back(row * capacity + position);
      std::fill_n(sees.begin() + i * capacity, position + 1, 0.0f);
    }
    const Storage own_storage{stored.data() + first * capacity * 2 * wide,
                              {2, count * capacity, 2, heads, head},
                              rows * capacity * 2 * wide,
                              {}};
    const Seen seen{tensor(sees, count, 1, length, capacity), own_storage,
                    view<const int64_t>(at.data(), count * length), {}};
    Source source{{}, tensor(mask, count, 1, 1, longest), {}};
    source.mask->data += first * longest;
    const int64_t stride = longest * 2 * wide;
    const int64_t sizes[] = {count, longest, 2, heads, head};
    Rows<5> states{read.data() + first * stride, {}, stride, {}};
    std::copy_n(sizes, 5, states.sizes);
    source.layers = {states, states};
    Numbers own, out(count * length * dim);
    for (int row = first; row < first + count; ++row) {
      const auto at = x.begin() + (row * block + start) * dim;
      own.insert(own.end(), at, at + length * dim);
    }
    stack.run({tensor(own, count, length, dim), {}, {}}, seen, &source, {0, 2},
              view(out.data(), count, length, dim), threads);
    return out;
  };
  kind_of = int8 ? REST : FLOATS;
  Numbers stored = past, again = past;
  const Numbers all = run(0, rows, 0, block, stored, 3);
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < block; ++place)
      compare(std::string(isa.name) + ", layers, a position alone", run(row, 1, place, 1, again, 1),
              [&](size_t i) { return Exact{all[(row * block + place) * dim + i]}; });
  kind_of = REST;
}

// Where teams wait for longer than they compute, the next calls have one thread.
static void test_crowd() {
  const int64_t ms = 1'000'000, half = ms / 2;
  const int64_t calls[][4] = {  // threads, how long it took, how long they waited, whether it is slow
      {2, 9 * ms, 4 * ms, false}, {2, ms, half, false},        {4, 40 * ms, 87 * ms, false},
      {2, 9 * ms, 5 * ms, true},  {4, 40 * ms, 93 * ms, true},
  };
  for (const auto& [threads, took, waited, is_slow] : calls) {
    Crowd own;
    for (int times = 0; times < 9; ++times) own.learn(int(threads), took, waited);
    compare("a crowd", std::vector<int>{own.is_here()}, [&](size_t) { return Exact{double(is_slow)}; });
  }
#ifdef _OPENMP
  for (int times = 0; times < 9; ++times) crowd.learn(2, 9 * ms, 8 * ms);
  std::vector<int> teams(1);
  in_team(2, [&](int, int team) { teams[0] = team; });
  compare("threads in a crowd", teams, [](size_t) { return Exact{1}; });
#endif
}

// With a number, so many of the sets and some of the shapes: emulated processors are slow.
int main(int count, char** words) {
  const int each = count > 1 ? 3 : 1;
  int num_left = count > 1 ? std::atoi(words[1]) : 99;
  const auto some_of = [&](const auto& all, const auto& test) {
    for (size_t i = 0; i < std::size(all); i += each) test(all[i]);
  };
  const std::pair<int, int> products[] = {{1, 1},  {17, 5},    {30, 70},  {33, 150},
                                          {64, 32}, {128, 129}, {515, 64}, {2048, 67}};
  const int attended[] = {1, 2, 5, 15, 16, 17, 33, 64, 130}, heads[] = {1, 2, 7, 16, 31, 64, 65};
  for (const Isa* isa : usable()) {
    if (--num_left < 0) break;
    source.seed(1);
    std::fill_n(digests, 3, 0xcbf29ce484222325);
    some_of(products, [&](const auto& shape) {
      for (bool bias : {false, true}) test_products(*isa, shape.first, shape.second, bias);
    });
    test_activations(*isa);
    for (int dim : {1, 7, 16, 33, 64, 83})
      some_of(attended, [&](int width) {
        test_attention(*isa, dim, width);
        test_shared_attention(*isa, dim, width);
      });
    for (int dim : {1, 5, 16, 47, 256, 1000})
      for (bool rms : {false, true}) test_norm(*isa, dim, rms);
    for (int width : {1, 5, 16, 37, 129, 1000, 17000}) test_logits(*isa, width);
    some_of(heads, [&](int head) {
      for (bool int8 : {false, true})
        for (bool t5 : {false, true})
          test_layers(*isa, 1 + head % 3, head, 2 * head + 3, int8, t5);
    });
    std::printf("%s", isa->name);
    for (uint64_t digest : digests) std::printf(" %016llx", (unsigned long long)(digest));
    std::printf("\n");
  }
  test_crowd();
  return failures > 0;
}
