/* Which digit an image shows: the network of `npusim demo`, in C.
 *
 *   classify digits.npubin digits.safetensors IMAGE.pgm
 *
 * IMAGE.pgm is a binary or plain PGM; it is scaled to the 8 x 8 pixels that the network looks at.
 */
#include <npusim/npusim.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 8, CLASSES = 10, MOST = 4096 };

static int fail(const char* what) {
  fprintf(stderr, "error: %s\n", what);
  return 2;
}

/* The next number of a PGM's header; -1 where there is none. */
static int number(FILE* file) {
  int c = fgetc(file), value = 0, digits = 0;
  while (c == '#' || c == ' ' || c == '\t' || c == '\n' || c == '\r') {
    if (c == '#')
      while (c != '\n' && c != EOF) c = fgetc(file);
    c = fgetc(file);
  }
  for (; c >= '0' && c <= '9' && digits < 6; c = fgetc(file), ++digits)
    value = value * 10 + (c - '0');
  return digits == 0 ? -1 : value;
}

/* Reads a PGM as 8 x 8 means of its pixels, from 0 to 1. Returns what is wrong, or null. */
static const char* read_image(const char* path, float out[SIDE * SIDE]) {
  const char* wrong = NULL;
  float counts[SIDE * SIDE] = {0};
  int plain, width, height, most, x, y, i;
  FILE* file = fopen(path, "rb");
  if (file == NULL) return "the image cannot be opened";
  plain = fgetc(file) == 'P' ? fgetc(file) : 0;
  if (plain != '2' && plain != '5') {
    fclose(file);
    return "the image is no PGM (P2 or P5)";
  }
  width = number(file);
  height = number(file);
  most = number(file);
  if (width < SIDE || height < SIDE || width > MOST || height > MOST || most < 1 || most > 255)
    wrong = "the image is not from 8 x 8 to 4096 x 4096 pixels of a byte";
  for (i = 0; i < SIDE * SIDE; ++i) out[i] = 0;
  for (y = 0; wrong == NULL && y < height; ++y) {
    for (x = 0; x < width; ++x) {
      const int pixel = plain == '2' ? number(file) : fgetc(file);
      const int at = y * SIDE / height * SIDE + x * SIDE / width;
      if (pixel < 0 || pixel > most) {
        wrong = "the image is cut short, or has a pixel above its maximum";
        break;
      }
      out[at] += (float)pixel / (float)most;
      counts[at] += 1;
    }
  }
  for (i = 0; wrong == NULL && i < SIDE * SIDE; ++i) out[i] /= counts[i];
  fclose(file);
  return wrong;
}

static npusim_status classify(const char* program_path, const char* weights_path,
                              const float* image, float* scores) {
  static const int64_t shape[] = {1, 1, SIDE, SIDE};
  npusim_device* device = NULL;
  npusim_program* program = NULL;
  npusim_weights* weights = NULL;
  npusim_executor* executor = NULL;
  npusim_tensor input = NPUSIM_TENSOR_INIT, output = NPUSIM_TENSOR_INIT;
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  npusim_status status = npusim_device_open("cpu", NULL, &device);
  if (status == NPUSIM_OK) status = npusim_program_open(program_path, &program);
  if (status == NPUSIM_OK)
    status = npusim_weights_open(program, device, weights_path, NULL, &weights);
  if (status == NPUSIM_OK) status = npusim_executor_create(program, device, &executor);
  if (status == NPUSIM_OK) {
    input.data = (void*)image;
    input.bytes = SIDE * SIDE * sizeof *image;
    input.shape = shape;
    input.rank = 4;
    input.dtype = NPUSIM_FLOAT32;
    output.data = scores;
    output.bytes = CLASSES * sizeof *scores;
    output.dtype = NPUSIM_FLOAT32;
    options.weights = weights;
    status = npusim_executor_call(executor, 0, &input, 1, &output, 1, &options);
  }
  npusim_executor_free(executor); /* in any order; null is fine */
  npusim_weights_free(weights);
  npusim_program_free(program);
  npusim_device_free(device);
  return status;
}

int main(int count, char** arguments) {
  float image[SIDE * SIDE], scores[CLASSES];
  const char* wrong;
  int best = 0, i;
  if (count != 4) return fail("usage: classify PROGRAM.npubin WEIGHTS IMAGE.pgm");
  wrong = read_image(arguments[3], image);
  if (wrong != NULL) return fail(wrong);
  if (classify(arguments[1], arguments[2], image, scores) != NPUSIM_OK)
    return fail(npusim_last_error());
  for (i = 1; i < CLASSES; ++i)
    if (scores[i] > scores[best]) best = i;
  printf("%d\n", best);
  return 0;
}
