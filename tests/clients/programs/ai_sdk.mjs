// Plays one scenario with the Vercel AI SDK, and prints what it shows.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { API: api, SCENARIO: scenario, BASE_URL: baseURL, API_KEY: apiKey, QUESTION: prompt } = process.env;
const models = {
  chat: () => createOpenAI({ baseURL, apiKey }).chat("default"),
  responses: () => createOpenAI({ baseURL, apiKey }).responses("default"),
  messages: () => createAnthropic({ baseURL, apiKey })("default"),
  compatible: () => createOpenAICompatible({ name: "rl", baseURL, apiKey, supportsStructuredOutputs: true })("default"),
};
const add = tool({
  description: "Adds.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => `sum=${a + b}`,
});
const options = { model: models[api](), prompt, maxRetries: 0, stopWhen: stepCountIs(4) };

const plays = {
  text: async () => ({ text: (await generateText(options)).text }),
  tools: async () => ({ text: (await generateText({ ...options, tools: { add } })).text }),
  stream: async () => {
    const pieces = [];
    const result = streamText({ ...options, onError: ({ error }) => { throw error; } });
    for await (const piece of result.textStream) pieces.push(piece);
    return { text: pieces.join(""), pieces: pieces.length };
  },
  structured: async () => ({
    object: (await generateObject({ ...options, schema: z.object({ value: z.number() }) })).object,
  }),
};
console.log(JSON.stringify(await plays[scenario]()));
