// Plays one scenario with LangChain JS, and prints what it shows.
import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const { API: api, SCENARIO: scenario, BASE_URL: baseURL, API_KEY: apiKey, QUESTION: question } = process.env;
const openai = (more) => new ChatOpenAI({ model: "default", apiKey, maxRetries: 0, configuration: { baseURL }, ...more });
const models = {
  chat: () => openai({}),
  responses: () => openai({ useResponsesApi: true }),
  messages: () =>
    new ChatAnthropic({ model: "default", apiKey, anthropicApiUrl: baseURL.replace(/\/v1$/, ""), maxRetries: 0 }),
};
const model = models[api]();
const add = tool(async ({ a, b }) => `sum=${a + b}`, {
  name: "add",
  description: "Adds.",
  schema: z.object({ a: z.number(), b: z.number() }),
});

const plays = {
  text: async () => ({ text: (await model.invoke(question)).text }),
  tools: async () => {
    const messages = [new HumanMessage(question)];
    const bound = model.bindTools([add]);
    for (;;) {
      const reply = await bound.invoke(messages);
      messages.push(reply);
      if (!reply.tool_calls.length) return { text: reply.text };
      for (const call of reply.tool_calls) {
        messages.push(new ToolMessage({ content: await add.invoke(call.args), tool_call_id: call.id }));
      }
    }
  },
  stream: async () => {
    const pieces = [];
    for await (const chunk of await model.stream(question)) if (chunk.text) pieces.push(chunk.text);
    return { text: pieces.join(""), pieces: pieces.length };
  },
  structured: async () => ({
    object: await model.withStructuredOutput(z.object({ value: z.number() }), { name: "answer" }).invoke(question),
  }),
};
console.log(JSON.stringify(await plays[scenario]()));
