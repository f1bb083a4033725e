// SPDX-License-Identifier: Apache-2.0
#include "traces/import/pickle.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "hardware/config.hpp"

namespace moesim {

namespace {

// The error has no place: the function that opened the file adds it.
[[noreturn]] void refuse_pickle(const std::string& what) { throw ConfigError(what); }

// torch's typed storages, as a pickle names them.
struct StorageName {
  std::string_view name;
  ElementType type;
};
constexpr std::array storage_names{
    StorageName{"torch BoolStorage", ElementType::boolean},
    StorageName{"torch ByteStorage", ElementType::u8},
    StorageName{"torch CharStorage", ElementType::i8},
    StorageName{"torch ShortStorage", ElementType::i16},
    StorageName{"torch IntStorage", ElementType::i32},
    StorageName{"torch LongStorage", ElementType::i64},
    StorageName{"torch HalfStorage", ElementType::f16},
    StorageName{"torch BFloat16Storage", ElementType::bf16},
    StorageName{"torch FloatStorage", ElementType::f32},
    StorageName{"torch DoubleStorage", ElementType::f64},
};
constexpr std::string_view rebuild_tensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view ordered_dict = "collections OrderedDict";
constexpr std::string_view tuple_name = "tuple";

}  // namespace

const PyValue* PyDict::find(std::string_view key) const {
  const auto found = std::find_if(items.rbegin(), items.rend(), [&](const auto& item) {
    const auto* text = std::get_if<std::string_view>(&item.first);
    return text != nullptr && *text == key;
  });
  return found == items.rend() ? nullptr : &found->second;
}

// The stack machine of pickletools, as far as torch.save() writes for it.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, Pickle& out) : rest_(bytes), out_(out) {}

  PyValue run() {
    for (;;) {
      const char opcode = take(1)[0];
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty())
      refuse_pickle("its pickle ends in the middle of a value");
    return plain(stack_.back());
  }

 private:
  struct Part;
  using Item = std::variant<PyValue, const Part*>;
  // Part of a tensor: a name that is known, a storage, or a tuple with such in it.
  struct Part {
    std::string_view name;
    std::string_view storage{};
    std::int64_t elements = 0;
    std::vector<Item> tuple{};
  };

  std::string_view take(std::size_t bytes) {
    if (bytes > rest_.size()) refuse_pickle("its pickle is cut short");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) refuse_pickle("its pickle is cut short");
    const std::string_view text = take(end + 1);
    return text.substr(0, end);
  }

  static PyValue plain(const Item& item) {
    const auto* value = std::get_if<PyValue>(&item);
    if (value == nullptr) refuse_pickle("its pickle holds a bare name where a value is expected");
    return *value;
  }
  void push(Item item) { stack_.push_back(item); }
  void push_part(Part part) {
    parts_.push_back(std::move(part));
    push(&parts_.back());
  }
  // The parts of a tuple that has names in it; none of anything else.
  static std::span<const Item> tuple_of(const Item& item) {
    const auto* part = std::get_if<const Part*>(&item);
    return part == nullptr ? std::span<const Item>() : std::span((*part)->tuple);
  }
  Item pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      refuse_pickle("its pickle takes a value from an empty stack");
    const Item item = stack_.back();
    stack_.pop_back();
    return item;
  }
  std::vector<PyValue> pop_values(std::size_t count) {
    std::vector<PyValue> values(count);
    for (std::size_t i = count; i-- > 0;) values[i] = plain(pop());
    return values;
  }
  std::size_t above_mark() {
    if (marks_.empty()) refuse_pickle("its pickle takes a value from an empty stack");
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  template <class T>
  T* top(std::string_view what) {
    const auto* value = stack_.empty() ? nullptr : std::get_if<PyValue>(&stack_.back());
    const auto* found = value == nullptr ? nullptr : std::get_if<const T*>(value);
    if (found == nullptr)
      refuse_pickle(fmt::format("its pickle adds items to a value that is not a {}", what));
    return const_cast<T*>(*found);  // it is out_'s own
  }
  void push_list(std::vector<PyValue> items) {
    out_.lists_.push_back({std::move(items)});
    push(PyValue(&out_.lists_.back()));
  }
  void push_dict() {
    out_.dicts_.emplace_back();
    push(PyValue(&out_.dicts_.back()));
  }
  // A tuple may hold names: a tensor's arguments do.
  void push_tuple(std::size_t count) {
    std::vector<Item> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    const bool named = std::any_of(items.begin(), items.end(), [](const Item& item) {
      return std::holds_alternative<const Part*>(item);
    });
    if (named) return push_part({.name = tuple_name, .tuple = std::move(items)});
    std::vector<PyValue> values;
    for (const Item& item : items) values.push_back(std::get<PyValue>(item));
    push_list(std::move(values));
  }
  void append(std::vector<PyValue> items) {
    auto& list = top<PyList>("list")->items;
    list.insert(list.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<PyValue>& items) {
    if (items.size() % 2 != 0) refuse_pickle("its pickle has a key without a value");
    PyDict* dict = top<PyDict>("dictionary");
    for (std::size_t i = 0; i < items.size(); i += 2)
      dict->items.emplace_back(items[i], items[i + 1]);
  }

  void remember(std::size_t key) {
    if (stack_.empty()) refuse_pickle("its pickle stores a value from an empty stack");
    // torch numbers what it remembers from 0 on.
    if (key > memo_.size()) refuse_pickle("its pickle numbers its stored values out of order");
    if (key == memo_.size()) memo_.emplace_back();
    memo_[key] = stack_.back();
  }
  void recall(std::size_t key) {
    if (key >= memo_.size()) refuse_pickle("its pickle reads a stored value that it never stored");
    push(memo_[key]);
  }

  void push_name(std::string_view module, std::string_view name) {
    const std::string full = fmt::format("{} {}", module, name);
    const auto storage = std::find_if(storage_names.begin(), storage_names.end(),
                                      [&](const StorageName& known) { return known.name == full; });
    std::string_view known;
    if (storage != storage_names.end()) known = storage->name;
    if (full == rebuild_tensor) known = rebuild_tensor;
    if (full == ordered_dict) known = ordered_dict;
    if (known.empty())
      refuse_pickle(
          fmt::format("asks for {:.60}.{:.60}, which is not run; a dictionary of numbers, texts "
                      "and tensors is expected",
                      printable(module), printable(name)));
    push_part({.name = known});
  }
  static std::string printable(std::string_view text) {
    std::string shown(text);
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return shown;
  }

  // ('storage', torch.IntStorage, '0', 'cpu', elements)
  void push_storage() {
    const Item tuple = pop();
    const std::span<const Item> said = tuple_of(tuple);
    if (said.size() != 5)
      refuse_pickle("its pickle has a reference that is not a storage of a tensor");
    const auto* type = std::get_if<const Part*>(&said[1]);
    const PyValue key = plain(said[2]), elements = plain(said[4]);
    const auto* name = std::get_if<std::string_view>(&key);
    const auto* count = std::get_if<std::int64_t>(&elements);
    if (type == nullptr || name == nullptr || count == nullptr || *count < 0)
      refuse_pickle("its pickle has a reference that is not a storage of a tensor");
    push_part({.name = (*type)->name, .storage = *name, .elements = *count});
  }

  static std::vector<std::int64_t> whole_numbers(const PyValue& value) {
    const auto* list = std::get_if<const PyList*>(&value);
    if (list == nullptr) refuse_pickle("has a tensor without a shape");
    std::vector<std::int64_t> numbers;
    for (const PyValue& item : (*list)->items) {
      const auto* number = std::get_if<std::int64_t>(&item);
      if (number == nullptr || *number < 0) refuse_pickle("has a tensor with an invalid shape");
      numbers.push_back(*number);
    }
    return numbers;
  }

  // _rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks)
  void push_tensor(std::span<const Item> said) {
    if (said.size() < 4) refuse_pickle("has a tensor without a storage or a shape");
    const auto* storage = std::get_if<const Part*>(&said[0]);
    const PyValue offset = plain(said[1]);
    const auto* first = std::get_if<std::int64_t>(&offset);
    const auto type = storage == nullptr ? storage_names.end()
                                         : std::find_if(storage_names.begin(), storage_names.end(),
                                                        [&](const StorageName& known) {
                                                          return known.name == (*storage)->name;
                                                        });
    if (type == storage_names.end() || (*storage)->storage.data() == nullptr || first == nullptr ||
        *first < 0)
      refuse_pickle("has a tensor without a storage");
    PyTensor tensor{(*storage)->storage,           type->type,
                    (*storage)->elements,          *first,
                    whole_numbers(plain(said[2])), whole_numbers(plain(said[3]))};
    if (tensor.shape.size() != tensor.stride.size()) refuse_pickle("has a tensor without a stride");
    out_.tensors_.push_back(std::move(tensor));
    push(PyValue(&out_.tensors_.back()));
  }

  void reduce() {
    const Item arguments = pop(), callable = pop();
    const auto* part = std::get_if<const Part*>(&callable);
    const std::string_view name = part == nullptr ? "" : (*part)->name;
    if (name == rebuild_tensor) {
      push_tensor(tuple_of(arguments));
    } else if (name == ordered_dict) {
      push_dict();
    } else {
      refuse_pickle("its pickle calls a function that is not run");
    }
  }

  void push_long(std::size_t bytes) {
    if (bytes > 8) refuse_pickle("has a number of more than 64 bits");
    const std::string_view digits = take(bytes);
    std::uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = digits.size(); i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(digits[i]);
    push(PyValue(static_cast<std::int64_t>(value)));
  }
  void push_real() {
    std::string bytes(take(8));
    std::reverse(bytes.begin(), bytes.end());
    double value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    push(PyValue(value));
  }
  void push_text(std::size_t bytes) { push(PyValue(take(bytes))); }

  void step(char opcode) {
    switch (static_cast<unsigned char>(opcode)) {
      case 0x80:  // PROTO
        if (const auto protocol = number<std::uint8_t>(); protocol < 2 || protocol > 5)
          refuse_pickle(fmt::format("is a pickle of protocol {}; 2 to 5 are read", protocol));
        return;
      case 0x95: take(8); return;  // FRAME
      case '(': marks_.push_back(stack_.size()); return;
      case 'N': push(PyValue()); return;
      case 0x88: push(PyValue(true)); return;
      case 0x89: push(PyValue(false)); return;
      case 'J': push(PyValue(std::int64_t{number<std::int32_t>()})); return;
      case 'K': push(PyValue(std::int64_t{number<std::uint8_t>()})); return;
      case 'M': push(PyValue(std::int64_t{number<std::uint16_t>()})); return;
      case 0x8a: push_long(number<std::uint8_t>()); return;
      case 'G': push_real(); return;
      case 'X': push_text(number<std::uint32_t>()); return;
      case 0x8c: push_text(number<std::uint8_t>()); return;
      case ']':
      case ')': push_list({}); return;
      case '}': push_dict(); return;
      case 'a': append_one(); return;
      case 'e': append_marked(); return;
      case 's': set_one(); return;
      case 'u': set_marked(); return;
      case 't': push_tuple(above_mark()); return;
      case 0x85: push_tuple(1); return;
      case 0x86: push_tuple(2); return;
      case 0x87: push_tuple(3); return;
      case 'q': remember(number<std::uint8_t>()); return;
      case 'r': remember(number<std::uint32_t>()); return;
      case 0x94: remember(memo_.size()); return;
      case 'h': recall(number<std::uint8_t>()); return;
      case 'j': recall(number<std::uint32_t>()); return;
      case 'c': push_global(); return;
      case 0x93: push_stacked_global(); return;
      case 'Q': push_storage(); return;
      case 'R': reduce(); return;
      default:
        refuse_pickle(
            fmt::format("its pickle has the opcode 0x{:02x}, which is not among those that data "
                        "needs",
                        static_cast<unsigned char>(opcode)));
    }
  }
  void append_one() {
    const PyValue item = plain(pop());
    append({item});
  }
  void append_marked() {
    const std::size_t count = above_mark();
    append(pop_values(count));
  }
  void set_one() { set_items(pop_values(2)); }
  void set_marked() {
    const std::size_t count = above_mark();
    set_items(pop_values(count));
  }
  void push_global() {
    const std::string_view module = line();
    push_name(module, line());
  }
  void push_stacked_global() {
    const std::vector<PyValue> names = pop_values(2);
    const auto* module = std::get_if<std::string_view>(&names[0]);
    const auto* name = std::get_if<std::string_view>(&names[1]);
    if (module == nullptr || name == nullptr)
      refuse_pickle("its pickle asks for a name that is not text");
    push_name(*module, *name);
  }

  std::string_view rest_;
  Pickle& out_;
  std::vector<Item> stack_, memo_;
  std::vector<std::size_t> marks_;
  std::deque<Part> parts_;
};

Pickle::Pickle(std::string_view bytes) { value_ = PickleMachine(bytes, *this).run(); }

}  // namespace moesim
